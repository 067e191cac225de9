"""Frames x = T(z) in which a target is nearly a standard normal, and targets as they are seen through them."""

from steinmatch.coordinates.lowrank import LowRank
from steinmatch.coordinates.maps import (
    AbstractFrame,
    AffineMap,
    Composed,
    Order,
    Parent,
    PulledBack,
    Spline,
    colour_all,
    log_dets,
    pull_scores,
    push_scores,
    whiten_all,
)
from steinmatch.coordinates.pairs import Pair, Polyharmonic

__all__ = [
    "AbstractFrame",
    "AffineMap",
    "Composed",
    "LowRank",
    "Order",
    "Pair",
    "Parent",
    "Polyharmonic",
    "PulledBack",
    "Spline",
    "colour_all",
    "log_dets",
    "pull_scores",
    "push_scores",
    "whiten_all",
]
