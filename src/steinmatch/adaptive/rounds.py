"""What the next round of a walk is to be, after a verdict: how many transitions, of which length, from which draws."""

import dataclasses
from statistics import NormalDist

import numpy as np

from steinmatch.adaptive.chains import Memory, cautious_fail, drawn, too_stiff
from steinmatch.adaptive.frames import Cloud
from steinmatch.adaptive.leaps import CYCLE, leaping
from steinmatch.adaptive.verdict import Verdict
from steinmatch.adaptive.walks import ACCEPTANCE, CAUTION, CHUNK
from steinmatch.measures.images import next_affordable

LEAST_MORE = 1.25  # times the draws that there are, for a round to tell something new
MOST_MORE = 1.6  # times: 1.4, 1.6 and 2 cost the same in the mean (hierarchical models of 65 and 90 dimensions, 4
# seeds), and at worst 24, 24 and 31 thousand gradients
MOST_DRAWS = 2**18
_MOST_NUMBERS = 4 * 10**7  # n d of the draws
_SHORTER = 1.0 / CAUTION  # factor of steps that were too long for where they went: what was cautious is usual then
_HELPS = 0.7  # shorter steps must lower the share of failures by this factor, else it is not the steps
_UNADAPTED = 0.6  # acceptance: half way to where steps are right, in terms of the energy error's variance


def most_draws(d: int) -> float:
    """Of a walk in d dimensions: what memory and a verdict can bear."""
    return min(float(MOST_DRAWS), _MOST_NUMBERS / d)


def _shift(acceptance: float) -> float:
    """Of the log step, from this mean acceptance to the wanted one.

    Energy errors of mean s^2 / 2 and sd s, which grows with the square of the step, are accepted 2 Phi(-s / 2) of the
    time.
    """
    here, there = (-NormalDist().inv_cdf(0.5 * max(a, 0.01)) for a in (acceptance, ACCEPTANCE))
    return 0.5 * float(np.log(there / here))


def further(memory: Memory, verdict: Verdict, tol: float) -> Memory:
    """Before the next round: as many transitions as the error asks for, at most 1.6 times what there are; of chains
    that have not mixed, the older half is dropped.
    """
    chains = memory.chains
    assert chains is not None
    have = len(chains.stretches)
    kept = have if verdict.mixed else have // 2
    last = memory.rounds[-1]
    shortened = [found.stiff for found in memory.rounds[memory.past_rounds :] if found.shortened]
    log_step = chains.log_step + np.clip(last.acceptance - ACCEPTANCE, -0.5, 0.0 if shortened else 0.2)
    unadapted = last.acceptance < _UNADAPTED and not shortened
    if unadapted:
        # Leaps need no adapted steps, so nobody has adapted them: that trajectories fail says nothing of stiffness.
        shift = _shift(last.acceptance)
        log_step = chains.log_step + shift
        past = tuple(stretch._replace(factors=np.exp(-shift) * stretch.factors) for stretch in chains.stretches)
        chains = dataclasses.replace(chains, stretches=past)
    elif too_stiff(last, tol) and (not shortened or last.stiff < _HELPS * shortened[-1]):
        # What was not entered because of long steps is missing from all draws, unless cautious trajectories entered
        # it. One in four has shorter steps from now on, and it is these that must not fail; the others stay bold.
        kept = kept if not cautious_fail(chains) else 0
        log_step = log_step - np.log(_SHORTER)
        past = tuple(stretch._replace(factors=_SHORTER * stretch.factors) for stretch in chains.stretches)
        chains = dataclasses.replace(chains, boldness=_SHORTER * chains.boldness, stretches=past)
        memory = dataclasses.replace(memory, rounds=(*memory.rounds[:-1], dataclasses.replace(last, shortened=True)))
    z, scores, densities = drawn(chains)
    leaps = chains.leaping and memory.points is not None and leaping(memory.points, Cloud(z, densities, scores))
    chains = dataclasses.replace(chains, log_step=float(log_step), leaping=leaps)
    needed = 1.1 * have * (2.0 * verdict.error.largest / tol) ** 2
    least = LEAST_MORE * have if kept == have else 0.5 * have
    least = max(least, kept + CYCLE) if unadapted else least  # with trajectories among them
    if not memory.plain:  # no further than to where more equations can be borne
        needed = min(needed, next_affordable(len(z), z.shape[1], len(verdict.error.mean)) / len(z) * have)
    all_there_may_be = most_draws(z.shape[1]) / len(z) * have
    most = min(MOST_MORE * have, all_there_may_be)
    if LEAST_MORE * most > all_there_may_be and kept == have:
        most = np.floor(all_there_may_be)  # there could be no further round
    wanted = int(np.ceil(np.clip(needed, least, max(most, least))))
    chains = dataclasses.replace(
        chains,
        stretches=chains.stretches[have - kept :],
        values=chains.values[have - kept :],
        wanted=wanted * CHUNK,
    )
    return dataclasses.replace(memory, chains=chains)
