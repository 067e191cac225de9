"""What a fit, or sharpened draws, tell on their report page."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from steinmatch._types import float64
from steinmatch.adaptive.evidence import evidence_bound
from steinmatch.adaptive.frames import batch_of
from steinmatch.records.pages.report import Column, Report, escaped, paragraphs, rows_of
from steinmatch.records.plots import foremost
from steinmatch.targets import Evaluations, SavedTarget, constrained_values


@float64
def of_fit(fit: Any, title: str, call: str) -> Report:
    """The report of a `Fit`."""
    summary = fit.summary()
    names, values = fit._named_values
    headline = "Converged." if fit.converged else "NOT converged."
    if fit.converged and fit.error is not None:
        reach = 2.0 * fit.error.largest
        headline = (
            f"Converged: every mean is known to {reach:.2g} posterior sds, every sd to {reach:.1%}, at two standard "
            "errors."
        )
    moments = [
        Column("mean", summary.values[:, 0], summary.error),
        Column("sd", summary.values[:, 1], summary.sd_error),
        *(Column(level, summary.values[:, 2 + i]) for i, level in enumerate(("5%", "50%", "95%"))),
    ]
    if fit.error is None:
        history = fit.history.get("residual", np.zeros(0))
        rounds, over = [(i + 1, float(value)) for i, value in enumerate(history)], "steps"
    else:
        rounds, over = [(found.n_draws, found.error) for found in fit.rounds], "draws"
    return Report(
        title=title,
        headline=headline,
        good=fit.converged,
        warnings=[text[:1].upper() + text[1:] for text in fit.reason.split("; ")],
        names=names,
        columns=moments,
        values=values,
        weights=fit.weights,
        log_densities=_log_densities(fit),
        rounds=rounds,
        rounds_over=over,
        rounds_of="scaled residual" if fit.error is None else "largest standard error",
        goal=None if fit.tol is None or fit.error is None else 0.5 * fit.tol,
        sections=[*_way(fit), *_exact(fit), *_shares(fit, names), *_evidence(fit)],
        call=call or _call_of(fit),
    )


@float64
def of_sharpened(found: Any, title: str, call: str) -> Report:
    """The report of `Sharpened` draws."""
    before, after = found.before, found.after
    old, new = before.error.largest, after.error.largest
    warnings = [f"{len(found.draws):,} draws; weights that solve {found.family}, worth {found.ess:,.0f} draws."]
    if not found.agree:
        warnings.append("Plain and weighted draws disagree: the draws are not from this target, or it has an edge.")
    columns = [
        column
        for when, seen in (("", after), (" before", before))
        for column in (
            Column(f"mean{when}", seen.mean, seen.error.mean * seen.sd),
            Column(f"sd{when}", seen.sd, seen.error.sd * seen.sd),
        )
    ]
    return Report(
        title=title,
        headline=f"Sharpened: the largest standard error of a mean or sd was {old:.2g} and is now {new:.2g}."
        if found.agree
        else "NOT sharpened: the draws and the target disagree.",
        good=found.agree,
        warnings=warnings,
        names=found.names,
        columns=columns,
        values=constrained_values(found.target, found.draws)[1],
        weights=found.weights,
        sections=[("What is exact", paragraphs(_EQUATIONS.format(found.family, "")))] if found.agree else [],
        call=call,
    )


def _log_densities(fit: Any) -> Callable[[np.ndarray], Float[np.ndarray, " s"]] | None:
    """Of some particles: those that are drawn, since a walk has a hundred times as many."""
    if isinstance(fit.target, SavedTarget) or fit.target.log_density is None:
        return None
    evaluate = Evaluations(fit.target, batch_of(fit.target.dim))
    return float64(lambda shown: evaluate(np.asarray(fit.particles)[shown])[0])


def _way(fit: Any) -> list[tuple[str, str]]:
    spent = (
        f"{fit.n_gradients:,} gradients"
        + (f" and {fit.n_hvps:,} Hessian-vector products" if fit.n_hvps else "")
        + f" in {fit.seconds:.1f} s; {len(fit.particles):,} particles in {fit.target.dim} dimensions."
    )
    table = ""
    if fit.rounds:
        table = rows_of(
            (
                "round",
                "draws",
                "largest error",
                "equations solved by the weights",
                "nested R-hat",
                "gradients",
                "s",
            ),
            [
                (
                    f"{i}",
                    f"{r.n_draws:,}",
                    f"{r.error:.2g}",
                    r.family,
                    f"{np.sqrt(1.0 + r.memory):.3f}",
                    f"{r.n_gradients:,}",
                    f"{r.seconds:.1f}",
                )
                for i, r in enumerate(fit.rounds, 1)
            ],
        )
    return [("How it got there", paragraphs(spent) + table)]


_EQUATIONS = (
    "The weights solve the Stein equations of {}{}: averages that are zero under the posterior are zero over these "
    "draws, where those of a chain are zero on average only. What the equations explain of means and sds is exact; the "
    "standard errors are of the rest."
)


def _exact(fit: Any) -> list[tuple[str, str]]:
    if fit.error is None:
        return [("What is exact", f"<pre>{escaped(fit.certificate)}</pre>")]
    if not fit.rounds:
        return []
    return [("What is exact", paragraphs(_EQUATIONS.format(fit.rounds[-1].family, f", to {fit.residual:.1e}")))]


def _shares(fit: Any, names: tuple[str, ...]) -> list[tuple[str, str]]:
    if len(fit.modes) < 2:
        return []
    chosen = foremost(names, fit._named_values[1])
    rows = [
        (f"{i}", f"{m.share:.3g} ± {m.error:.1g}", *(f"{m.mean[j]:.3g} ± {m.sd[j]:.2g}" for j in chosen))
        for i, m in enumerate(fit.modes, 1)
    ]
    return [("Modes", rows_of(("mode", "share", *(names[j] for j in chosen)), rows))]


def _evidence(fit: Any) -> list[tuple[str, str]]:
    if fit.walked is None:
        return []
    try:
        found = fit.log_evidence
    except ValueError as error:
        return [("Evidence", paragraphs(f"Not known: {error}"))]
    words = f"log evidence {found.estimate:.2f} ± {found.error:.1g}, of the density as it is given, constants included."
    if len(fit.modes) < 2 and not isinstance(fit.target, SavedTarget):
        evaluate = Evaluations(fit.target, batch_of(fit.target.dim))
        bound = evidence_bound(evaluate, fit.walked.frame, fit.seed)
        words += (
            f" The bound that the frame was raised to is {bound.estimate:.2f} ± {bound.error:.1g}: it would be the "
        )
        words += "evidence if the posterior, seen through the frame, were exactly normal."
    return [("Evidence", paragraphs(words))]


def _call_of(fit: Any) -> str:
    """What made a fit, as far as it knows."""
    if fit.tol is not None:
        return f"steinmatch.fit(target, tol={fit.tol:g}, seed={fit.seed})"
    return f"steinmatch.fit(target, {len(fit.particles)}, kernel=..., seed={fit.seed})  # {fit.kernel.describe()}"
