"""Bayesian inference by Stein moment matching: choose which expectations must be exact, solve for them, prove it."""

from steinmatch import targets
from steinmatch.bandwidths import Fixed, Median
from steinmatch.discrepancy import ksd, ksd_random_features, ksd_squared, mmd
from steinmatch.features import FeatureKernel, Linear, LinearRandom, Polynomial, RandomFourier
from steinmatch.fitting import Fit, fit
from steinmatch.kernels import IMQ, RBF, Matern, PairKernel, Whitened
from steinmatch.solvers import Affine, Annealed, Chain, Descent, LevenbergMarquardt
from steinmatch.stein import stein_operator, stein_residual
from steinmatch.svgd import velocity
from steinmatch.targets import Target, tempered

__version__ = "0.1.0"

__all__ = [
    "IMQ",
    "RBF",
    "Affine",
    "Annealed",
    "Chain",
    "Descent",
    "FeatureKernel",
    "Fit",
    "Fixed",
    "LevenbergMarquardt",
    "Linear",
    "LinearRandom",
    "Matern",
    "Median",
    "PairKernel",
    "Polynomial",
    "RandomFourier",
    "Target",
    "Whitened",
    "fit",
    "ksd",
    "ksd_random_features",
    "ksd_squared",
    "mmd",
    "stein_operator",
    "stein_residual",
    "targets",
    "tempered",
    "velocity",
]
