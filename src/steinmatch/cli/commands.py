"""The command line: parse, call, print."""

import json
import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from steinmatch.fitting import Fit

app = typer.Typer(
    help="Bayesian inference by Stein moment matching.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=True,
)


def _version(asked: bool) -> None:
    if asked:
        from steinmatch import __version__

        print(f"steinmatch {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian inference by Stein moment matching: choose what must be exact, solve for it, prove it."""


def _keep_compiled() -> None:
    """Compiled code is kept in the user's cache folder: the second run of a model does without compiling."""
    import jax

    from steinmatch._files import cache_folder

    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


NOT_CONVERGED = 3
_DRAWS = "Draws of any sampler: .nc or CmdStan's .csv (by name), .npy or .csv (unconstrained)."


def _json(value: Any) -> str:
    """Standard JSON, in which what is not finite is null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: finite(part) for name, part in value.items()}
        if isinstance(value, list):
            return [finite(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value))


def _call() -> str:
    """The command as it was given."""
    return shlex.join(["steinmatch", *sys.argv[1:]])


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(escape(message))
    raise typer.Exit(2)


def _written(result: "Fit", out: Path, csv: bool, title: str) -> list[Path]:
    """The files of a fit; none, and a message, where they cannot be written."""
    names = ("report.html", "fit.nc", "summary.csv", "particles.png", *(("draws.csv",) if csv else ()))
    try:
        result.save(out / "fit.nc")
        result.summary().write_csv(out / "summary.csv")
        result.plot(out / "particles.png")
        result.report(out / "report.html", title=title, call=_call())
        if csv:
            result.write_csv(out / "draws.csv")
    except (OSError, ValueError) as error:
        Console(stderr=True).print(escape(f"Not written into {out}: {error}"))
        return []
    return [out / name for name in names]


def _record(result: "Fit") -> dict[str, Any]:
    summary = result.summary()
    return {
        "converged": result.converged,
        "reason": result.reason,
        "residual": result.residual,
        "n_gradients": result.n_gradients,
        "n_hvps": result.n_hvps,
        "seconds": result.seconds,
        "parameters": {name: summary[name] for name in summary.names},
    }


_OUT = Path("out/fit")
_DISTRIBUTED = "One of several processes: 'auto' under Slurm or Open MPI, or the coordinator, how many, and which."


def _joined(distributed: str | None) -> "tuple[Mesh | None, bool]":
    """All devices of the processes that work together, and whether this process is the first of them."""
    if distributed is None:
        return None, True
    import jax

    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if distributed == "auto":
            jax.distributed.initialize()
        else:
            address, n, i = distributed.split(",")
            jax.distributed.initialize(address, int(n), int(i))
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"fit: --distributed {distributed}: {error}; under Slurm or Open MPI give auto, else HOST:PORT,N,I: the "
            "coordinator's address, the number of processes, and which of them this is, from 0."
        ) from error
    return jax.make_mesh((jax.device_count(),), ("points",)), jax.process_index() == 0


@app.command()
def fit(
    model: Annotated[
        str,
        typer.Argument(metavar="FILE[:NAME]", help="Python with a target, a NumPyro or PyMC model; or a .stan file."),
    ],
    data: Annotated[Path | None, typer.Option(help="JSON file of data, for Stan and NumPyro models.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, fit.nc, summary.csv and particles.png.")] = _OUT,
    tol: Annotated[float, typer.Option(help="Accuracy of means and sds, in posterior sds.")] = 0.02,
    particles: Annotated[int | None, typer.Option(min=1, help="Number of particles; automatic by default.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="linear, linear+random, rbf, imq or matern; automatic by default.")
    ] = None,
    solver: Annotated[str, typer.Option(help="auto, walk, descent, affine, levenberg-marquardt or annealed.")] = "auto",
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 0,
    max_seconds: Annotated[float | None, typer.Option(help="Time limit; the best so far is kept.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to go on from, after an interruption.")] = None,
    distributed: Annotated[str | None, typer.Option(metavar="auto|HOST:PORT,N,I", help=_DISTRIBUTED)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Write draws.csv too, as CmdStan does: of equal weight.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show neither progress nor tables.")] = False,
) -> None:
    """Posterior means, sds and quantiles of a model, with errors and a certificate.

    steinmatch fit schools.py:model --out out/schools

    steinmatch fit schools.stan --data schools.json --tol 0.01

    Exit code 0: converged; 2: bad input; 3: not converged (results are written all the same).
    """
    from steinmatch._files import check_folder
    from steinmatch.cli.modelfile import BadFile, read_target
    from steinmatch.fitting import fit as fit_target

    _keep_compiled()
    options = {"kernel": kernel, "solver": solver, "seed": seed, "tol": tol, "max_seconds": max_seconds}
    try:
        check_folder(out)  # before the work, not after it
        mesh, first = _joined(distributed)
        target = read_target(model, data)
        result = fit_target(
            target, particles, **options, progress=not quiet and first, checkpoint=checkpoint, mesh=mesh
        )
    except (BadFile, ValueError, TypeError) as error:
        _fail(str(error))
    if not first:  # of several processes one writes
        return
    written = _written(result, out, csv, Path(model.split(":")[0]).stem)
    if as_json:
        print(_json(_record(result)))
    elif not quiet:
        console = Console()
        console.print(result.summary())
        if result.error is None:  # of a fixed point: what is exact; of an automatic fit the report page says it
            console.print(result.certificate)
        console.print("" if not written else f"Written: {escape(', '.join(map(str, written)))}")
    if not written:
        raise typer.Exit(2)
    if not result.converged:
        raise typer.Exit(NOT_CONVERGED)


@app.command()
def assess(
    draws: Annotated[
        Path,
        typer.Argument(help=_DRAWS),
    ],
    target: Annotated[str, typer.Option(metavar="FILE[:NAME]", help="The model, as for fit.")],
    data: Annotated[Path | None, typer.Option(help="JSON file of data, for Stan and NumPyro models.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """What draws of any other sampler are worth: certificate, KSD, Stein ESS. To correct them, see `sharpen`.

    steinmatch assess draws.npy --target schools.py:model
    """
    from steinmatch.cli.assessment import assess_draws
    from steinmatch.cli.modelfile import BadFile, read_named_draws, read_target
    from steinmatch.records.foreign import read_foreign

    _keep_compiled()
    try:
        model = read_target(target, data)
        found = assess_draws(model, read_foreign(read_named_draws(draws, model), model, "assess").x)
    except (BadFile, ValueError, TypeError) as error:
        _fail(str(error))
    if as_json:
        print(_json(found.as_dict()))
    else:
        Console().print(found)


@app.command()
def sharpen(
    draws: Annotated[
        Path,
        typer.Argument(help=_DRAWS),
    ],
    target: Annotated[str, typer.Option(metavar="FILE[:NAME]", help="The model, as for fit.")],
    data: Annotated[Path | None, typer.Option(help="JSON file of data, for Stan and NumPyro models.")] = None,
    out: Annotated[Path | None, typer.Option(help="NetCDF file for the draws with their weights.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML page: before and after, in a table and pictures; else beside --out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Stein weights for the draws of any other sampler: means and sds with standard errors, before and after.

    steinmatch sharpen draws.nc --target schools.py:model --out sharpened.nc
    """
    from steinmatch._files import check_folder
    from steinmatch.answers.sharpening import sharpen as sharpen_draws
    from steinmatch.cli.modelfile import BadFile, read_named_draws, read_target
    from steinmatch.records.storage import write

    _keep_compiled()
    report = out.with_suffix(".html") if report is None and out is not None else report
    try:
        for path in (out, report):
            if path is not None:
                check_folder(path.parent)
        model = read_target(target, data)
        found = sharpen_draws(read_named_draws(draws, model), model)
    except (BadFile, ValueError, TypeError) as error:
        _fail(str(error))
    try:
        if out is not None:
            write(found.groups(), out)
        if report is not None:
            found.report(report, call=_call())
    except (OSError, ValueError) as error:
        _fail(f"Not written to {out or report}: {error}")
    if as_json:
        print(_json(found.as_dict()))
    else:
        Console().print(found)
        if out is not None or report is not None:
            Console().print("Written: " + escape(", ".join(str(path) for path in (out, report) if path is not None)))


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
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes, one core each; as many as cores.")] = None,
) -> None:
    """Run the paper's experiments and check its claims. An interrupted run goes on where it stopped.

    steinmatch reproduce all --quick --out out/quick
    """
    from steinmatch.experiments import run

    console = Console()
    try:
        claims = run(
            experiments or ["all"],
            out,
            trials=trials,
            seed=seed,
            quick=quick,
            solver=solver,
            annealed=annealed,
            jobs=jobs or os.cpu_count() or 1,
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


@app.command()
def play(
    name: Annotated[str, typer.Argument(help="gaussian, banana, funnel or mixture.")] = "banana",
    out: Annotated[Path, typer.Option(help="The page.")] = Path("out/play.html"),
    seed: Annotated[int, typer.Option(help="Same seed, same page.")] = 0,
) -> None:
    """A page to watch solvers at work on a target of two dimensions.

    steinmatch play banana --out banana.html
    """
    from steinmatch._files import check_folder, write_whole
    from steinmatch.cli.play import n_runs, played
    from steinmatch.progress import counted_bar
    from steinmatch.records.pages.play import play_page

    _keep_compiled()
    try:
        check_folder(out.parent)
        with counted_bar(True, name, n_runs()) as advance:
            found = played(name, seed, advance)
        write_whole(out, play_page(found))
    except (OSError, ValueError) as error:
        _fail(str(error))
    Console().print(f"Written: {escape(str(out))}")


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One posterior and one small step: about a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.html and bench.json.")] = Path("out/bench"),
    seed: Annotated[int, typer.Option(help="Same seed, same draws.")] = 0,
) -> None:
    """This library beside NumPyro's NUTS and the SVGD of BlackJAX and NumPyro, on this machine.

    steinmatch bench --quick
    """
    from rich.table import Table

    from steinmatch._files import check_folder, write_whole
    from steinmatch.cli.bench import HEADINGS, about, bench_page, posterior_rows, problems, shown, step_rows
    from steinmatch.progress import counted_bar

    rows, cases, sizes = [], problems(quick), (200,) if quick else (500, 2000)
    try:
        check_folder(out)
        with counted_bar(True, "bench", len(cases) + len(sizes)) as advance:
            for name, (y, sigma) in cases.items():
                rows += posterior_rows(name, y, sigma, seed)
                advance()
            for n in sizes:
                rows += step_rows(n)
                advance()
        write_whole(out / "bench.html", bench_page(rows))
        write_whole(out / "bench.json", _json({"about": about(), "rows": [row._asdict() for row in rows]}) + "\n")
    except (ImportError, OSError, ValueError) as error:
        _fail(str(error))
    table = Table(*HEADINGS, caption=about(), caption_justify="left")
    for row in rows:
        table.add_row(*map(escape, shown(row)))
    console = Console()
    console.print(table)
    console.print(escape(f"Written: {out / 'bench.html'}, {out / 'bench.json'}"))
