"""Models of other packages as targets."""

from steinmatch.frontends.numpyro import from_numpyro
from steinmatch.frontends.pymc import from_pymc
from steinmatch.frontends.stan import from_stan

__all__ = ["from_numpyro", "from_pymc", "from_stan"]
