"""The fixed point, solved: accuracy and seconds (compile included) beside small steps and the peers.

python -m benchmarks.solvers [section ...]      sections: gaussian condition linear mixtures rbf degrees; all by default
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import steinmatch as sm
from benchmarks._common import print_versions
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

D = 100
CONSOLE = Console(width=150)
DESCENT = sm.Descent(optax.adagrad(0.5), n_steps=2000)


def errors(target, particles) -> tuple[float, float]:
    """MSE of the mean, and of E[x^2] relative to the squared second moments."""
    mean = float(np.mean((particles.mean(0) - target.mean) ** 2))
    return mean, float(np.mean(((particles**2).mean(0) / target.second_moment - 1.0) ** 2))


def timed(run):
    """The result and the seconds of run(), nothing compiled before."""
    jax.clear_caches()
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def add_fit(table: Table, label: str, target, run) -> None:
    fit, seconds = timed(run)
    mean, second = errors(target, fit.particles)
    table.add_row(label, f"{mean:.1e}", f"{second:.1e}", f"{fit.residual:.1e}", f"{seconds:.1f}", str(fit.converged))


def moments_table(title: str) -> Table:
    table = Table(title=title)
    for column in ("", "MSE mean", r"MSE E\[x^2], relative", "scaled residual", "seconds", "converged"):
        table.add_column(column, justify="left" if column == "" else "right")
    return table


def numpyro_linear(target, n: int, rate: float, steps: int) -> tuple[np.ndarray, float]:
    """NumPyro's SVGD with its LinearKernel and an accumulating Adagrad."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD
    from numpyro.contrib.einstein.stein_kernels import LinearKernel

    def model():
        numpyro.sample("x", dist.MultivariateNormal(target.mean, target.cov))

    def run():
        svgd = SVGD(model, numpyro.optim.Adagrad(rate), LinearKernel(), num_stein_particles=n)
        result = svgd.run(jax.random.key(0), steps, progress_bar=False)
        return np.asarray(result.params["x_auto_loc"])

    return timed(run)


def blackjax_rbf(target, n: int, steps: int) -> tuple[np.ndarray, float]:
    """BlackJAX's SVGD with its RBF kernel and median heuristic."""
    import blackjax
    from blackjax.vi.svgd import rbf_kernel, update_median_heuristic

    def run():
        svgd: Any = blackjax.svgd(target.score, optax.adagrad(0.5), rbf_kernel, update_median_heuristic)
        state = svgd.init(jax.random.normal(jax.random.key(0), (n, target.dim)))
        step = jax.jit(svgd.step)
        for _ in range(steps):
            state = step(state)
        return np.asarray(state.particles)

    return timed(run)


def gaussian() -> None:
    """Standard Gaussian, the paper's linear+random kernel."""
    target = Gaussian(np.zeros(D), np.eye(D))
    table = moments_table(f"1. N(0, I), d = {D}, LinearRandom")
    for n in (101, 150, 250, 1000):
        run = lambda n=n: sm.fit(target, n, kernel=sm.LinearRandom(), max_seconds=250)  # noqa: E731
        add_fit(table, f"n = {n}, auto", target, run)
        if n <= 250:
            run = lambda n=n: sm.fit(target, n, kernel=sm.LinearRandom(), solver=DESCENT)  # noqa: E731
            add_fit(table, f"n = {n}, 2000 steps of descent", target, run)
    particles, seconds = blackjax_rbf(target, 250, 300)
    cells = [f"{error:.1e}" for error in errors(target, particles)]
    table.add_row("n = 250, BlackJAX, RBF, 300 steps", *cells, "", f"{seconds:.1f}", "")
    CONSOLE.print(table)


def condition() -> None:
    """Random Gaussians of growing condition number."""
    table = moments_table(f"2. random Gaussians, d = {D}, n = 250, LinearRandom")
    for number in (10.0, 100.0, 1000.0):
        target = Gaussian.random(jax.random.key(1), D, number)
        for label, solver in (("auto", "auto"), ("2000 steps of descent", DESCENT)):
            run = lambda t=target, s=solver: sm.fit(t, 250, kernel=sm.LinearRandom(), solver=s)  # noqa: E731
            add_fit(table, f"condition {number:g}, {label}", target, run)
    CONSOLE.print(table)


def linear() -> None:
    """Linear features, beside NumPyro's LinearKernel."""
    target = Gaussian(np.zeros(D), np.eye(D))
    table = moments_table(f"3. N(0, I), d = {D}, Linear")
    for n in (101, 120, 250):
        add_fit(table, f"n = {n}, auto", target, lambda n=n: sm.fit(target, n, kernel=sm.Linear()))
        best = None
        for rate in (0.1, 0.5, 1.0):
            particles, seconds = numpyro_linear(target, n, rate, 5000)
            result = (*errors(target, particles), seconds, rate)
            best = result if best is None or result[1] < best[1] else best
        label = f"n = {n}, NumPyro, Adagrad({best[3]}), 5000 steps"
        table.add_row(label, f"{best[0]:.1e}", f"{best[1]:.1e}", "", f"{best[2]:.1f}", "")
    CONSOLE.print(table)
    fit, seconds = timed(lambda: sm.fit(target, 50, kernel=sm.Linear()))
    velocity = np.abs(sm.velocity(target, fit.kernel, fit.particles)).max()
    CONSOLE.print(f"   n = 50: largest velocity {velocity:.1e} in {seconds:.1f} s; {fit.reason}\n")


def mixtures() -> None:
    """The paper's mixture and RBM, beside exact Monte Carlo of the same size.

    The moments no longer change below a residual of 5e-3, where the fixed points lie in flat valleys; they do depend on
    the start. So the first start of each model is solved to 1e-5, and three more to 5e-3 for the average.
    """
    n, models = 200, 5
    table = Table(
        title=f"4. n = {n}, {models} models, 4 starts each: mean MSE of exact Monte Carlo / mean MSE of the fits"
    )
    for column in ("target", "kernel", r"E\[x]", r"E\[x^2]", "largest residual", "seconds to it"):
        table.add_column(column, justify="right")
    for kernel in (sm.LinearRandom(), sm.Linear()):
        for name, draw in (
            ("mixture, alpha = 1", lambda key: GaussianMixture.random(key, D, 1.0)),
            ("RBM", GaussBernoulliRBM.random),
        ):
            ours, theirs, residuals, seconds = [], [], [], []
            for i in range(models):
                target = draw(jax.random.key(i))
                for seed, tol in enumerate((1e-5, 5e-3, 5e-3, 5e-3)):
                    solver = sm.Chain(sm.Affine(), sm.LevenbergMarquardt(tol=tol))
                    fit = sm.fit(target, n, kernel=kernel, solver=solver, seed=seed, max_seconds=900)
                    ours.append(absolute_errors(target, fit.particles))
                    if seed == 0:
                        residuals.append(fit.residual)
                        seconds.append(fit.seconds)
                draws = [target.sample(jax.random.key(1000 + j), n) for j in range(20)]
                theirs.append(np.mean([absolute_errors(target, x) for x in draws], axis=0))
                ratios = theirs[-1] / np.mean(ours[-4:], axis=0)
                label = f"   {name}, {type(kernel).__name__}, model {i}: residual {residuals[-1]:.1e}"
                CONSOLE.print(f"{label}, {seconds[-1]:.0f} s, {ratios[0]:.1f}x, {ratios[1]:.1f}x")
            ratio = np.mean(theirs, axis=0) / np.mean(ours, axis=0)
            cells = (f"{ratio[0]:.1f}x", f"{ratio[1]:.1f}x", f"{max(residuals):.1e}", f"{np.mean(seconds):.0f}")
            table.add_row(name, type(kernel).__name__, *cells)
    CONSOLE.print(table)


def absolute_errors(target, particles) -> np.ndarray:
    return np.array(
        [
            np.mean((particles.mean(0) - target.mean) ** 2),
            np.mean(((particles**2).mean(0) - target.second_moment) ** 2),
        ]
    )


def banana() -> sm.Target:
    return sm.Target(lambda x: -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2) ** 2, dim=2)


def rbf() -> None:
    """Fixed points of the RBF kernel, beside descent for the same time."""
    table = Table(title="5. RBF, n = 100: largest velocity at the particles")
    for column in ("target", "auto", "seconds", "bandwidth", "its rule", "descent, same seconds"):
        table.add_column(column, justify="right")
    targets = {
        "Gaussian, d = 2": Gaussian.random(jax.random.key(1), 2, 5.0),
        "Gaussian, d = 20": Gaussian.random(jax.random.key(1), 20, 10.0),
        "banana, d = 2": banana(),
    }
    for name, target in targets.items():
        fit, seconds = timed(lambda t=target: sm.fit(t, 100, kernel=sm.RBF(), max_seconds=55))
        ruled = float(sm.Median()(jnp.asarray(fit.particles)))
        slow = sm.fit(
            target, 100, kernel=sm.RBF(), solver=sm.Descent(optax.adagrad(0.5), n_steps=10**7), max_seconds=seconds
        )
        velocities = [np.abs(sm.velocity(target, f.kernel, f.particles)).max() for f in (fit, slow)]
        table.add_row(
            name,
            f"{velocities[0]:.1e}",
            f"{seconds:.1f}",
            f"{float(fit.kernel.bandwidth.bandwidth):.4f}",
            f"{ruled:.4f}",
            f"{velocities[1]:.1e}",
        )
    CONSOLE.print(table)


def logistic() -> tuple[sm.Target, np.ndarray, np.ndarray]:
    """A skewed 2-D logistic posterior with 12 observations, and its mean and variance by quadrature on a grid."""
    key = jax.random.key(4)
    x = jax.random.normal(key, (12, 2))
    y = (x @ jnp.array([2.0, -1.0]) + jax.random.logistic(jax.random.fold_in(key, 1), (12,)) > 0) * 1.0

    def log_density(w):
        logits = x @ w
        return jnp.sum(y * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(w**2) / 9.0

    line = jnp.linspace(-15.0, 20.0, 1201)
    grid = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = jax.nn.softmax(jax.vmap(log_density)(grid))
    mean = mass @ grid
    return sm.Target(log_density, dim=2), np.asarray(mean), np.asarray(mass @ (grid - mean[None, :]) ** 2)


def degrees() -> None:
    """Polynomial features of growing degree on a skewed posterior."""
    target, mean, variance = logistic()
    table = Table(title="6. logistic posterior, d = 2, n = 200: errors against quadrature")
    for column in ("kernel", "mean (sds)", "variance (relative)", "scaled residual", "seconds"):
        table.add_column(column, justify="right")
    kernels = {f"Polynomial({p}), whitened": sm.Whitened(sm.Polynomial(p)) for p in (1, 2, 3, 4)}
    kernels["Polynomial(3)"] = sm.Polynomial(3)
    kernels["RBF, 2000 steps of descent"] = sm.RBF()
    for name, kernel in kernels.items():
        solver = DESCENT if "RBF" in name else "auto"
        fit, seconds = timed(lambda k=kernel, s=solver: sm.fit(target, 200, kernel=k, solver=s))
        off_mean = np.abs(fit.mean - mean).max() / np.sqrt(variance.min())
        off_variance = np.abs(fit.sd**2 / variance - 1.0).max()
        table.add_row(name, f"{off_mean:.1e}", f"{off_variance:.1e}", f"{fit.residual:.1e}", f"{seconds:.1f}")
    CONSOLE.print(table)


SECTIONS = {
    "gaussian": gaussian,
    "condition": condition,
    "linear": linear,
    "mixtures": mixtures,
    "rbf": rbf,
    "degrees": degrees,
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print_versions("jax", "numpyro", "blackjax")
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main()
