"""What Levenberg-Marquardt goes by: how its damping moves, when it stops, how much work a step may be.

Each number has a default that served Gaussians of any condition number, RBMs, mixtures and full-rank kernels alike.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Damping:
    """lambda, relative to the mean diagonal of J J^T; `dense` where its systems are factorised."""

    first_dense: float = 1e-3  # a trial costs little beside the Jacobian, so it begins boldly
    first_krylov: float = 1e-1  # conjugate gradients take the longer the smaller it is
    least: float = 1e-14  # rounding of J J^T
    raised_dense: float = 3.0  # after a failed trial, of which there may be several
    raised_krylov: float = 10.0  # ... each of which takes as long as the step
    lowered: float = 0.2  # after a trial that succeeded
    lowered_slowly: float = 0.7  # ... where one has failed before it: another failure would cost as much as the step
    lowered_fast: float = 0.01  # ... that left less than `good` of the residual: convergence is quadratic
    good: float = 0.2

    def first(self, dense: bool) -> float:
        return self.first_dense if dense else self.first_krylov

    def raised(self, damping: float, dense: bool) -> float:
        return damping * (self.raised_dense if dense else self.raised_krylov)

    def after(self, damping: float, left: float, failed: bool) -> float:
        """After a step that left this share of the residual; `failed`: at a smaller damping it had none."""
        slowly = self.lowered_slowly if failed else self.lowered
        return max(damping * (slowly if left > self.good else self.lowered_fast), self.least)


@dataclasses.dataclass(frozen=True)
class Patience:
    """When a solve is done, has stalled, or goes on from elsewhere."""

    trials: int = 15  # dampings of one step: 3^15 and 10^15 are beyond any that helps
    steps: int = 25  # stagnation: so many steps
    progress: float = 0.9  # ... that leave more than this of the residual
    rounding: float = 1e-12  # a scaled residual below which there is nothing to gain
    digit: float = 0.1  # below tol, each further step must leave less than this
    shake: float = 0.03  # sds by which particles are moved out of a valley without a fixed point
    near: float = 1e-7  # a stall below this is an ill-conditioned fixed point, not such a valley
    near_bandwidth: float = 0.01  # ... if the bandwidth, relative to its rule's, is as near as this
    bandwidth: float = 5e-3  # relative: a held bandwidth that agrees with its rule; moments follow it at first order
    swings: int = 4  # a bandwidth held anew this often may swing about its rule's value, and goes half of the way

    def done(self, residuals: tuple[float, ...], tol: float) -> bool:
        """Below tol, and nothing more to gain by one more step."""
        return residuals[-1] <= tol and (residuals[-1] <= self.rounding or residuals[-1] > self.digit * residuals[-2])

    def stalled(self, residuals: tuple[float, ...]) -> bool:
        return len(residuals) > self.steps and residuals[-1] > self.progress * residuals[-1 - self.steps]


@dataclasses.dataclass(frozen=True)
class Effort:
    """Conjugate gradient iterations of a step."""

    first: int = 200  # until steps get slow; geodesic acceleration starts where more are allowed
    slow: float = 0.96  # a step that leaves more than this of the residual is allowed twice as many
    slow_inner: int = 800  # a step that is slow with so many calls for a factor
    stale: int = 60  # with a factor: made anew above this, if they are twice those of its first step

    def is_stale(self, iterations: int, fresh: int) -> bool:
        return iterations > max(self.stale, 2 * fresh)
