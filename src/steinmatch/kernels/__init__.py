"""Kernels of two points, their sums and scalings."""

from steinmatch.kernels.base import AbstractKernel, Scaled, Sum, Whitened
from steinmatch.kernels.radial import IMQ, RBF, AbstractRadialKernel, Matern, PairKernel

__all__ = [
    "IMQ",
    "RBF",
    "AbstractKernel",
    "AbstractRadialKernel",
    "Matern",
    "PairKernel",
    "Scaled",
    "Sum",
    "Whitened",
]
