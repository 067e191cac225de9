"""The command line: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    help="Bayesian inference by Stein moment matching.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=True,
)


@app.callback()
def main() -> None:
    """Bayesian inference by Stein moment matching: choose what must be exact, solve for it, prove it."""


@app.command()
def reproduce(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="gaussian, condition, mixture, rbm, rate, exactness, or all")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, tables, claims.md and index.html.")] = Path(
        "out/reproduce"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="One trial and small grids: minutes.")] = False,
    trials: Annotated[int, typer.Option(min=1, help="Random models or starts of each setting.")] = 20,
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 0,
    solver: Annotated[str, typer.Option(help="descent, newton or both")] = "both",
    annealed: Annotated[bool, typer.Option("--annealed", help="Show annealing beside, on the mixtures.")] = False,
) -> None:
    """Run the paper's experiments and check its claims. An interrupted run goes on where it stopped.

    steinmatch reproduce all --quick --out out/quick
    """
    from steinmatch.experiments import run

    console = Console()
    try:
        claims = run(
            experiments or ["all"], out, trials=trials, seed=seed, quick=quick, solver=solver, annealed=annealed
        )
    except ValueError as error:
        Console(stderr=True).print(escape(str(error)))
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        Console(stderr=True).print(f"Stopped; the same command goes on from what is in {out}.")
        raise typer.Exit(130) from None
    held = sum(claim.holds for claim in claims)
    for claim in sorted(claims, key=lambda claim: (claim.number, claim.text)):
        state = "[green]holds[/]" if claim.holds else "[red]does not hold[/]"
        console.print(f"({claim.number}) {escape(claim.text)}: {escape(claim.measured)}: {state}")
    console.print(f"{held} of {len(claims)} claims hold. See {out / 'index.html'} and {out / 'claims.md'}.")
