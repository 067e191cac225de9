"""Claims of the paper, each with the number that decides it: computed, never typed."""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim: what is measured, and whether it holds. `why` is shown where it does not."""

    number: int
    text: str
    measured: str
    holds: bool
    why: str = ""


def markdown(claims: Iterable[Claim], heading: str) -> str:
    """claims.md: a table, and below it what was found about claims that do not hold."""
    ordered = sorted(claims, key=lambda claim: (claim.number, claim.text))
    lines = [f"# {heading}", "", "| | claim | measured | |", "|---|---|---|---|"]
    for claim in ordered:
        state = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.number} | {claim.text} | {claim.measured} | {state} |")
    failed = [claim for claim in ordered if not claim.holds]
    if failed:
        lines += ["", "## Where a claim does not hold", ""]
        lines += [f"- ({claim.number}) {claim.text}: {claim.why or 'not yet explained.'}" for claim in failed]
    return "\n".join(lines) + "\n"
