"""A progress bar for long solves, shown only where somebody can see it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


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
        TextColumn("step {task.completed}  residual {task.fields[residual]:.1e}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, residual=float("nan"))

        def move(iterate: Any) -> None:
            steps = getattr(iterate, "n_steps", None)  # an Iterate of a solver, or a Level of the automatic fit
            bar.update(task, completed=steps, advance=None if steps else 1, residual=iterate.residual)

        yield move
