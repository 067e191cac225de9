"""One full RBF-median SVGD step beside BlackJAX and NumPyro, and the peak memory of a large one.

python -m benchmarks.step
"""

import resource
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.table import Table

import steinmatch as sm
from benchmarks._common import median_seconds, print_versions
from steinmatch.targets import scores_at

DIM = 100
RATE = 0.1


def own_step(n: int):
    """Bandwidth by the median rule, velocity, and an Adagrad update, in one compiled function."""
    target, rule, kernel = sm.targets.Gaussian(jnp.zeros(DIM), jnp.eye(DIM)), optax.adagrad(RATE), sm.RBF()
    particles = jax.random.normal(jax.random.key(0), (n, DIM))
    weights = jnp.full(n, 1.0 / n)

    @jax.jit
    def step(particles, state):
        velocity = kernel.hold(particles).velocity(particles, scores_at(target, particles), weights)
        updates, state = rule.update(-velocity, state, particles)
        return optax.apply_updates(particles, updates), state

    state = rule.init(particles)
    return lambda: step(particles, state)


def blackjax_step(n: int):
    import blackjax
    from blackjax.vi.svgd import rbf_kernel, update_median_heuristic

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    svgd: Any = blackjax.svgd(jax.grad(log_density), optax.adagrad(RATE), rbf_kernel, update_median_heuristic)
    state = svgd.init(jax.random.normal(jax.random.key(0), (n, DIM)))
    step = jax.jit(lambda state: svgd.step(state))
    return lambda: step(state)


def numpyro_step(n: int):
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD, RBFKernel

    def model():
        numpyro.sample("x", dist.Normal(jnp.zeros(DIM), 1.0).to_event(1))

    svgd = SVGD(model, numpyro.optim.Adagrad(RATE), RBFKernel(), num_stein_particles=n)
    state = svgd.init(jax.random.key(0))
    step = jax.jit(lambda state: svgd.update(state)[0])
    return lambda: step(state).optim_state


def large_step() -> None:
    """n = 50,000, d = 10: one step through the public function; prints the peak memory of the process."""
    n, d = 50_000, 10
    target = sm.targets.Gaussian(jnp.zeros(d), jnp.eye(d))
    particles = target.sample(jax.random.key(0), n)
    seconds = median_seconds(lambda: sm.velocity(target, sm.RBF(), particles), repeats=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"n = {n:,}, d = {d}: RBF-median velocity in {seconds:.1f} s, peak memory of the process {peak:.2f} GiB")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print_versions("jax", "blackjax", "numpyro")
    table = Table(title=f"one RBF-median SVGD step, d = {DIM}, float64, jitted, warm (ms)")
    for column in ("n", "steinmatch", "BlackJAX", "NumPyro", "BlackJAX / steinmatch", "NumPyro / steinmatch"):
        table.add_column(column, justify="right")
    for n in (500, 2000):
        own = median_seconds(own_step(n), repeats=15)
        theirs = [median_seconds(make(n), repeats=3) for make in (blackjax_step, numpyro_step)]
        cells = [f"{1000 * seconds:.1f}" for seconds in (own, *theirs)]
        table.add_row(str(n), *cells, *(f"{seconds / own:.0f}x" for seconds in theirs))
    Console().print(table)
    subprocess.run([sys.executable, "-m", "benchmarks.step", "--large"], check=True)


if __name__ == "__main__":
    large_step() if "--large" in sys.argv else main()
