"""One wanted expectation: its estimate with an error, and the features that would make it exact.

A query looks at the particles three ways: their plain average; the Stein equation over them; and the distance of f from
what they match. It never moves them; `query_features` says which features a new solve should match for f.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._types import Vector, float64
from steinmatch.certificate import EXACT, stein_ess
from steinmatch.equation import SteinSolution, stein_equation
from steinmatch.features import FeatureKernel, Polynomial
from steinmatch.kernels import IMQ, AbstractKernel, AffineMap, Whitened
from steinmatch.matching import Distance, MatchingSet
from steinmatch.stein import features_at, residual_at, values_at
from steinmatch.svgd import velocity_at
from steinmatch.targets import AbstractTarget, scores_at


def kernel_for(n: int, dim: int) -> AbstractKernel:
    """The features of the Stein equation over n particles: polynomials as far as n carries them, and a kernel."""
    kernel: AbstractKernel = Whitened(IMQ())
    for degree in (2, 1):
        if 3 * Polynomial(degree).n_features(dim) * dim <= n:
            return Whitened(Polynomial(degree)) + kernel
    return kernel
