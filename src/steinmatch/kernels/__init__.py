"""Kernels of two points, their sums and scalings."""

from steinmatch.kernels.base import AbstractKernel, AffineMap, Scaled, Sum, Whitened
from steinmatch.kernels.radial import IMQ, RBF, AbstractRadialKernel, Matern, PairKernel

__all__ = [
    "IMQ",
    "RBF",
    "AbstractKernel",
    "AbstractRadialKernel",
    "AffineMap",
    "Matern",
    "PairKernel",
    "Scaled",
    "Sum",
    "Whitened",
]
