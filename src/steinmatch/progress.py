"""A progress bar for long solves, shown only where somebody can see it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(show: bool, title: str, total: int | None) -> Iterator:
    """Yields a function that takes iterates and moves a bar; silent when asked or when the output is no terminal."""
    console = Console(stderr=True)
    if not show or not (console.is_terminal or console.is_jupyter):
        yield lambda iterate: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[doing]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, doing="")

        def move(iterate: Any) -> None:
            doing = iterate.doing or f"step {iterate.counts.steps}  residual {iterate.residual:.1e}"
            bar.update(task, completed=iterate.counts.steps, doing=doing)

        yield move


@contextmanager
def counted_bar(show: bool, title: str, total: int) -> Iterator:
    """Yields a function that moves a bar by one."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not show or not (console.is_terminal or console.is_jupyter)
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
