"""What draws of any sampler are worth: certificate and discrepancy."""

import dataclasses

import numpy as np
from jaxtyping import Float
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from steinmatch.answers.certificate import Certificate, certify
from steinmatch.kernels import Whitened
from steinmatch.kernels.features import Linear
from steinmatch.measures.discrepancy import ksd
from steinmatch.targets import AbstractTarget, constrained_values

_DRAWS = 5000  # of the discrepancy, a sum over pairs


@dataclasses.dataclass(frozen=True)
class Assessment:
    """The verdict on draws. Prints as tables."""

    n_draws: int
    certificate: Certificate
    ksd: float
    names: tuple[str, ...]
    mean: Float[np.ndarray, " k"]  # of the draws
    sd: Float[np.ndarray, " k"]

    def as_dict(self) -> dict:
        """Plain numbers."""
        columns = {name: getattr(self, name) for name in ("mean", "sd")}
        return {
            "n_draws": self.n_draws,
            "ksd": self.ksd,
            "stein_ess": float(self.certificate.stein_ess),
            "residual": float(self.certificate.residual),
            "parameters": {
                name: {column: float(values[i]) for column, values in columns.items()}
                for i, name in enumerate(self.names)
            },
        }

    def __rich__(self) -> Group:
        table = Table(caption=f"{self.n_draws} draws; KSD {self.ksd:.3g}", caption_justify="left")
        for column in ("", "mean", "sd"):
            table.add_column(column, justify="left" if not column else "right")
        for name, mean, sd in zip(self.names, self.mean, self.sd, strict=True):
            table.add_row(escape(name), f"{mean:.4g}", f"{sd:.4g}")
        return Group(table, self.certificate.__rich__())


def assess_draws(target: AbstractTarget, draws: Float[np.ndarray, "n d"]) -> Assessment:
    """The certificate of linear features of the whitened point, and the KSD."""
    n, d = draws.shape
    if n <= d + 1:
        raise ValueError(f"assess: {n} draws are too few for {d} dimensions; give more than {d + 1}.")
    certificate = certify(target, Whitened(Linear()), draws)
    names, values = constrained_values(target, draws)
    pairs = draws[np.linspace(0, n - 1, min(n, _DRAWS)).astype(int)]
    return Assessment(n, certificate, ksd(target, pairs), names, values.mean(axis=0), values.std(axis=0))
