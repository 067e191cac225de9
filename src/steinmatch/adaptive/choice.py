"""Which features a level adds: all of a degree where they are few, else those whose Stein identities fail most.

In a hierarchical model a few scale parameters interact with all others, each product by itself hardly visible. So
products are scored by variable: the violations of z_v z_i are added up over i, less what the noise of n points gives,
and the variables that stand out bring all their products.
"""

import itertools
import math

import numpy as np

from steinmatch.adaptive.monomials import Monomial, Monomials

FULL = 140  # a degree is taken whole up to so many features
_GROWTH = 90  # features that a level adds where it cannot take all
_WIDE = 30  # above this dimension third-degree candidates are those of the variables that stand out


def of_degree(dim: int, degree: int) -> list[Monomial]:
    """All Hermite products of this total degree."""
    chosen = itertools.combinations_with_replacement(range(dim), degree)
    return [tuple((v, c.count(v)) for v in sorted(set(c))) for c in chosen]


def first_features(dim: int) -> list[Monomial]:
    """The affine features: 1 and the coordinates."""
    return [(), *of_degree(dim, 1)]


def next_features(current: list[Monomial], level: int, z: np.ndarray, scores: np.ndarray) -> list[Monomial]:
    """The features of a level, given its particles so far; the same list where nothing is left to add."""
    d = z.shape[1]
    degree = level + 1
    if math.comb(d + degree, degree) <= FULL:
        return [m for k in range(degree + 1) for m in of_degree(d, k)]
    known = set(current)
    pairs = of_degree(d, 2)
    strong = _standing_out(pairs, z, scores)
    chosen: list[Monomial] = [m for m in pairs if len(m) == 1 and m not in known]  # the squares
    if math.comb(d + 2, 2) <= 2 * FULL:
        chosen = [m for m in pairs if m not in known]
    elif level == 1:
        rows = max(1, _GROWTH // d + 1)
        wanted = set(strong[:rows])
        chosen += [m for m in pairs if len(m) == 2 and wanted & {v for v, _ in m}]
    if level == 1:
        return current + chosen
    few = strong[: max(2, 2 * _GROWTH // d)]
    pool = [m for m in pairs if m not in known] + _triples(d, few)
    pool = [m for m in pool if m not in known and m not in set(chosen)]
    if level >= 3:
        pool += [((v, 4),) for v in (range(d) if d <= _WIDE else few) if ((v, 4),) not in known]
    if pool:
        order = np.argsort(-violations(pool, z, scores))
        chosen += [pool[i] for i in order[: max(0, _GROWTH - len(chosen))]]
    return current + chosen


def violations(monomials: list[Monomial], z: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """|G_l| over the spread of phi_l, for each candidate, in blocks."""
    found = []
    for start in range(0, len(monomials), 500):
        block = Monomials(monomials[start : start + 500], z.shape[1])
        spread = np.maximum(block.values(z).std(axis=1), 1e-9)
        found.append(np.linalg.norm(block.residual(z, scores), axis=1) / spread)
    return np.concatenate(found)


def _standing_out(pairs: list[Monomial], z: np.ndarray, scores: np.ndarray) -> list[int]:
    """The variables, those whose products are violated most first."""
    size = violations(pairs, z, scores) ** 2
    size = size - np.median(size)
    total = np.zeros(z.shape[1])
    for monomial, amount in zip(pairs, size, strict=True):
        for variable, _ in monomial:
            total[variable] += amount
    return [int(v) for v in np.argsort(-total)]


def _triples(dim: int, few: list[int]) -> list[Monomial]:
    """Third-degree candidates: all, or in many dimensions those with a variable of `few` in them twice or once."""
    if dim <= _WIDE:
        return of_degree(dim, 3)
    found: set[Monomial] = set()
    for v in few:
        found.add(((v, 3),))
        for i in range(dim):
            if i != v:
                found.add(tuple(sorted(((v, 2), (i, 1)))))
                found.add(tuple(sorted(((v, 1), (i, 2)))))
    return sorted(found)
