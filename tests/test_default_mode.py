"""What users run: a process of its own, JAX in its default float32 mode, NumPy data used before and after a fit."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from steinmatch.targets.closures import with_own_arrays

DATA = """
import jax, jax.numpy as jnp, numpy as np
import steinmatch as sm
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
y = (X @ np.ones(3) > 0.0).astype(float)
"""
PLAIN = """
data = {"X": X}

def eta(b):
    return data["X"] @ b

def log_density(b):
    return jnp.sum(y * eta(b) - jnp.logaddexp(0.0, eta(b))) - 0.5 * jnp.sum(b**2)

def other():
    assert (X @ jnp.ones(3)).dtype == jnp.float32
    assert jax.jit(log_density)(jnp.ones(3)).dtype == jnp.float32
    assert jax.jit(jax.grad(log_density))(jnp.ones(3)).shape == (3,)

def ours():
    fit = sm.fit(sm.Target(log_density, dim=3), progress=False)
    assert fit.converged and fit.particles.dtype == np.float64
    np.testing.assert_allclose(fit.mean, np.ones(3) * fit.mean.mean(), atol=1.0)
"""
NUMPYRO = """
import numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

def model(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)

def other():
    mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y=y)
    assert np.isfinite(np.asarray(mcmc.get_samples()["b"])).all()

def ours():
    fit = sm.fit(sm.from_numpyro(model, X, y=y), progress=False)
    assert fit.converged
"""


@pytest.mark.parametrize(
    ("script", "order"),
    [(PLAIN, "ours(); other(); ours()"), (NUMPYRO, "other(); ours(); other()")],
    ids=["plain", "numpyro"],
)
def test_fits_and_other_jax_share_numpy_data(script, order, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(DATA + textwrap.dedent(script) + "\n" + order.replace("; ", "\n") + "\nprint('done')\n")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-2000:]


def test_functions_over_copies_of_their_arrays():
    numbers, more = np.arange(3.0), {"a": np.ones(2), "b": 1}

    def inner(x):
        return x + numbers

    def outer(x, *, shift=np.full(3, 2.0)):  # noqa: B008
        return inner(x) + more["a"].sum() + shift

    def nothing(x):
        return x

    own = with_own_arrays(outer)
    assert own is not outer and own is with_own_arrays(outer) and own.__name__ == "outer"
    np.testing.assert_array_equal(own(1.0), outer(1.0))
    numbers += 1.0  # the copies are made anew where the arrays have changed
    assert with_own_arrays(outer) is not own
    np.testing.assert_array_equal(with_own_arrays(outer)(1.0), outer(1.0))
    assert with_own_arrays(nothing) is nothing and with_own_arrays(np.sum) is np.sum


def test_recursion_is_left_alone():
    steps = np.array([1.0, 2.0])

    def down(n):
        return steps.sum() if n == 0 else down(n - 1)

    assert with_own_arrays(down)(3) == 3.0


FORKED = """
import os, warnings
import jax.numpy as jnp
import steinmatch as sm
warnings.simplefilter("ignore")
target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
sm.fit(target, progress=False)
child = os.fork()
if child == 0:
    try:
        sm.fit(target, progress=False)
    except RuntimeError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fit_in_a_forked_child_says_so(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(FORKED)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "child 7" in done.stdout, done.stderr[-2000:]
