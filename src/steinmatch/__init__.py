"""Bayesian inference by Stein moment matching: choose which expectations must be exact, solve for them, prove it."""

from steinmatch import targets
from steinmatch.bandwidths import Fixed, Median
from steinmatch.certificate import Certificate, certify, stein_ess
from steinmatch.discrepancy import ksd, ksd_random_features, ksd_squared, mmd
from steinmatch.equation import SteinSolution, stein_equation
from steinmatch.features import FeatureKernel, Linear, LinearRandom, Polynomial, RandomFourier
from steinmatch.fitting import Fit, fit
from steinmatch.kernels import IMQ, RBF, Matern, PairKernel, Whitened
from steinmatch.matching import MatchingSet
from steinmatch.query import Query
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
    "Certificate",
    "Chain",
    "Descent",
    "FeatureKernel",
    "Fit",
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
    "SteinSolution",
    "Target",
    "Whitened",
    "certify",
    "fit",
    "ksd",
    "ksd_random_features",
    "ksd_squared",
    "mmd",
    "stein_equation",
    "stein_ess",
    "stein_operator",
    "stein_residual",
    "targets",
    "tempered",
    "velocity",
]
