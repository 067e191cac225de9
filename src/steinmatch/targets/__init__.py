"""Targets: the user's own, and analytic ones with exact moments."""

from steinmatch.targets.base import (
    AbstractTarget,
    ModelInfo,
    SavedTarget,
    Target,
    check_target,
    constrained_values,
    scores_at,
)
from steinmatch.targets.evaluations import Evaluations
from steinmatch.targets.gaussian import AbstractAnalyticTarget, Gaussian, NormalMixture
from steinmatch.targets.mixture import GaussianMixture
from steinmatch.targets.rbm import GaussBernoulliRBM
from steinmatch.targets.tempered import Tempered, tempered

__all__ = [
    "AbstractAnalyticTarget",
    "AbstractTarget",
    "Evaluations",
    "GaussBernoulliRBM",
    "Gaussian",
    "GaussianMixture",
    "ModelInfo",
    "NormalMixture",
    "SavedTarget",
    "Target",
    "Tempered",
    "check_target",
    "constrained_values",
    "scores_at",
    "tempered",
]
