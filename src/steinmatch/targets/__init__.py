"""Targets: the user's own, and analytic ones with exact moments."""

from steinmatch.targets.base import (
    AbstractTarget,
    ModelInfo,
    SavedTarget,
    Target,
    check_target,
    scores_at,
)
from steinmatch.targets.evaluations import Evaluations
from steinmatch.targets.files import passes_over
from steinmatch.targets.gaussian import AbstractAnalyticTarget, Gaussian, NormalMixture
from steinmatch.targets.mixture import GaussianMixture
from steinmatch.targets.rbm import GaussBernoulliRBM
from steinmatch.targets.tempered import Tempered, tempered
from steinmatch.targets.variables import (
    ByName,
    by_name,
    constrained_tree,
    constrained_values,
    in_form,
    is_named,
    shapes_of,
    variables,
)

__all__ = [
    "AbstractAnalyticTarget",
    "AbstractTarget",
    "ByName",
    "Evaluations",
    "GaussBernoulliRBM",
    "Gaussian",
    "GaussianMixture",
    "ModelInfo",
    "NormalMixture",
    "SavedTarget",
    "Target",
    "Tempered",
    "by_name",
    "check_target",
    "constrained_tree",
    "constrained_values",
    "in_form",
    "is_named",
    "passes_over",
    "scores_at",
    "shapes_of",
    "tempered",
    "variables",
]
