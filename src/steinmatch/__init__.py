"""Bayesian inference by Stein moment matching: choose which expectations must be exact, solve for them, prove it."""

import importlib
from typing import TYPE_CHECKING, Any

from steinmatch import targets
from steinmatch.adaptive import Walk
from steinmatch.answers.certificate import Certificate, certify, stein_ess
from steinmatch.answers.equation import SteinSolution, stein_equation
from steinmatch.answers.matching import MatchingSet
from steinmatch.answers.query import Query
from steinmatch.answers.sharpening import Sharpened, SteinWeights, sharpen, stein_weights
from steinmatch.comparison import Comparison, compare
from steinmatch.fitting import Fit, fit
from steinmatch.io import load
from steinmatch.kernels import IMQ, RBF, Matern, PairKernel, Whitened
from steinmatch.kernels.bandwidths import Fixed, Median
from steinmatch.kernels.features import FeatureKernel, Linear, LinearRandom, Polynomial, RandomFourier
from steinmatch.many import Fits, fit_many
from steinmatch.measures.discrepancy import ksd, ksd_random_features, ksd_squared, mmd
from steinmatch.measures.stein import stein_operator, stein_residual
from steinmatch.measures.velocity import velocity
from steinmatch.solvers import Affine, Annealed, Chain, Descent, LevenbergMarquardt
from steinmatch.targets import Target, tempered

if TYPE_CHECKING:
    from steinmatch.frontends import from_numpyro, from_pymc, from_stan
    from steinmatch.targets.parameters import cholesky_corr, interval, ordered, positive, real, simplex

__version__ = "0.1.0"

# Imported when they are first asked for: they bring NumPyro.
_LATER = {
    **dict.fromkeys(("from_numpyro", "from_pymc", "from_stan"), "steinmatch.frontends"),
    **dict.fromkeys(
        ("cholesky_corr", "interval", "ordered", "positive", "real", "simplex"), "steinmatch.targets.parameters"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'steinmatch' has no attribute {name!r}")


__all__ = [
    "IMQ",
    "RBF",
    "Affine",
    "Annealed",
    "Certificate",
    "Chain",
    "Comparison",
    "Descent",
    "FeatureKernel",
    "Fit",
    "Fits",
    "Fixed",
    "LevenbergMarquardt",
    "Linear",
    "LinearRandom",
    "MatchingSet",
    "Matern",
    "Median",
    "PairKernel",
    "Polynomial",
    "Query",
    "RandomFourier",
    "Sharpened",
    "SteinSolution",
    "SteinWeights",
    "Target",
    "Walk",
    "Whitened",
    "certify",
    "cholesky_corr",
    "compare",
    "fit",
    "fit_many",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "interval",
    "ksd",
    "ksd_random_features",
    "ksd_squared",
    "load",
    "mmd",
    "ordered",
    "positive",
    "real",
    "sharpen",
    "simplex",
    "stein_equation",
    "stein_ess",
    "stein_operator",
    "stein_residual",
    "stein_weights",
    "targets",
    "tempered",
    "velocity",
]
