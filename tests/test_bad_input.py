"""Bad input gets a sentence with the value, the place and the remedy."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.targets import GaussBernoulliRBM, Gaussian, GaussianMixture

GAUSS = Gaussian([0.0, 0.0], np.eye(2))
KEY = jax.random.key(0)


def normal(x):
    return -0.5 * jnp.sum(x**2)


CASES = {
    "no gradient": (lambda: sm.Target(dim=2), ValueError, r"needs a gradient: give log_density .* or score"),
    "numpy log density": (
        lambda: sm.Target(lambda x: float(np.sum(np.asarray(x))), dim=2),
        ValueError,
        r"without a gradient.*jax.numpy.*score=",
    ),
    "vector log density": (
        lambda: sm.Target(lambda x: -(x**2), dim=2),
        ValueError,
        r"log_density must return a scalar.*got shape \(2,\)",
    ),
    "integer log density": (
        lambda: sm.Target(lambda x: jnp.sum(x > 0), dim=2),
        ValueError,
        r"floating point",
    ),
    "score of wrong shape": (
        lambda: sm.Target(score=lambda x: x[:1], dim=2),
        ValueError,
        r"score must return a vector of shape \(2,\).*got shape \(1,\)",
    ),
    "dim mismatch": (
        lambda: sm.Target(lambda x: normal(x + jnp.ones(3)), dim=2),
        ValueError,
        r"log_density failed on a point of shape \(2,\).*dim=2",
    ),
    "dim zero": (
        lambda: sm.Target(normal, dim=0),
        ValueError,
        r"dim must be a whole number of at least 1, got 0",
    ),
    "names": (
        lambda: sm.Target(normal, dim=3, names=["a", "b"]),
        ValueError,
        r"2 names were given for dim=3",
    ),
    "equal names": (lambda: sm.Target(normal, dim=2, names=["a", "a"]), ValueError, r"names must differ"),
    "log density no function": (lambda: sm.Target(3.0, dim=2), TypeError, r"log_density must be a function"),
    "n_particles": (lambda: sm.fit(GAUSS, 0), ValueError, r"n_particles must be a whole number .* got 0"),
    "n_particles fraction": (lambda: sm.fit(GAUSS, 2.5), ValueError, r"n_particles .* got 2.5"),
    "not a target": (lambda: sm.fit(normal, 5), TypeError, r"Target\(log_density, dim=d\)"),
    "unknown kernel": (
        lambda: sm.fit(GAUSS, 5, kernel="rfb"),
        ValueError,
        r"unknown kernel 'rfb'. Did you mean 'rbf'",
    ),
    "unknown solver": (
        lambda: sm.fit(GAUSS, 5, solver="decent"),
        ValueError,
        r"unknown solver 'decent'. Did you mean 'descent'",
    ),
    "kernel class": (lambda: sm.fit(GAUSS, 5, kernel=sm.RBF), TypeError, r"write RBF\(\)"),
    "kernel of another kind": (lambda: sm.fit(GAUSS, 5, kernel=3), TypeError, r"kernel must be a kernel"),
    "init shape": (lambda: sm.fit(GAUSS, init=np.zeros(3)), ValueError, r"shape \(n, d\).*got shape \(3,\)"),
    "init dim": (
        lambda: sm.fit(GAUSS, init=np.zeros((4, 3))),
        ValueError,
        r"dimension 3, but the target has dim=2",
    ),
    "init and n": (
        lambda: sm.fit(GAUSS, 5, init=np.zeros((4, 2))),
        ValueError,
        r"n_particles=5, but init holds 4",
    ),
    "init nan": (lambda: sm.fit(GAUSS, init=[[0.0, np.nan]]), ValueError, r"entry \[0, 1\] is nan"),
    "init kernel": (lambda: sm.fit(GAUSS, 5, kernel="linear", init=sm.Linear()), ValueError, r"init.*a key and n"),
    "init text": (lambda: sm.fit(GAUSS, init=[["a", "b"]]), ValueError, r"must be an array of numbers"),
    "max_seconds": (
        lambda: sm.fit(GAUSS, 5, max_seconds=-1),
        ValueError,
        r"max_seconds must be a positive .* -1",
    ),
    "log density not finite": (
        lambda: sm.fit(sm.Target(lambda x: jnp.sum(jnp.log(x)), dim=1), 20, kernel="rbf"),
        ValueError,
        r"log density is not finite at \d+ of 20 starting particles; particle \d+.*init=",
    ),
    "gradient not finite": (
        lambda: sm.fit(sm.Target(lambda x: -jnp.sum(jnp.sqrt(jnp.abs(x))), dim=1), init=[[0.0]]),
        ValueError,
        r"gradient of the log density is not finite at 1 of 1",
    ),
    "velocity dim": (
        lambda: sm.velocity(GAUSS, sm.RBF(), np.zeros((3, 4))),
        ValueError,
        r"velocity.*dimension 4",
    ),
    "weights shape": (
        lambda: sm.velocity(GAUSS, sm.RBF(), np.zeros((3, 2)), weights=[1.0]),
        ValueError,
        r"weights must have shape \(3,\)",
    ),
    "negative weights": (
        lambda: sm.ksd(GAUSS, np.zeros((2, 2)), weights=[1.0, -1.0]),
        ValueError,
        r"non-negative.*from -1.0 to 1.0",
    ),
    "residual of rbf": (
        lambda: sm.stein_residual(GAUSS, sm.RBF(), np.zeros((3, 2))),
        TypeError,
        r"full-rank kernel without a feature map; use features",
    ),
    "bandwidth": (
        lambda: sm.RBF(bandwidth=-1.0),
        ValueError,
        r"bandwidth must be a positive number, got -1.0",
    ),
    "a width whose square overflows": (lambda: sm.Annealed(width=1e300), ValueError, r"from 1e-100 to 1e\+100"),
    "more probes than memory": (
        lambda: sm.MatchingSet(GAUSS, sm.Linear(), np.eye(2)).probes(10**12),
        ValueError,
        r"1,000,000,000,000 particles .* more than a quarter",
    ),
    "a seed without end": (lambda: sm.Walk(seed=-1), ValueError, r"seed must be a whole"),
    "a smoothness without end": (lambda: sm.Matern(nu=1e300), ValueError, r"nu must be one of 1.5, .* 20.5"),
    "unheld kernel": (lambda: sm.RBF()(jnp.ones(2), jnp.ones(2)), TypeError, r"kernel.hold\(particles\)"),
    "unbound kernel": (
        lambda: sm.RandomFourier(3).hold(jnp.ones((2, 2))).phi(jnp.ones(2)),
        TypeError,
        r"bind",
    ),
    "unbound spec": (
        lambda: sm.LinearRandom()(jnp.ones(2), jnp.ones(2)),
        TypeError,
        r"bind the kernel first",
    ),
    "unbound whitened": (
        lambda: sm.Whitened(sm.Linear()).phi(jnp.ones(2)),
        TypeError,
        r"bind the kernel first",
    ),
    "matern order": (lambda: sm.Matern(0.5), ValueError, r"1.5, 2.5, 3.5.*got 0.5"),
    "imq exponent": (lambda: sm.IMQ(exponent=1.5), ValueError, r"between 0 and 1, got 1.5"),
    "scaling": (
        lambda: -2.0 * sm.RBF(),
        ValueError,
        r"factor of a kernel must be a positive number, got -2.0",
    ),
    "degree": (lambda: sm.Polynomial(0), ValueError, r"degree must be a whole number of at least 1"),
    "features": (lambda: sm.RandomFourier(0), ValueError, r"n_features must be a whole number"),
    "matrix features": (
        lambda: sm.fit(GAUSS, 5, kernel=sm.FeatureKernel(lambda x: jnp.outer(x, x))),
        ValueError,
        r"must return a vector of m features.*of shape \(2, 2\)",
    ),
    "optax rule": (lambda: sm.Descent(0.1), TypeError, r"optax rule such as optax.adam"),
    "statistic": (lambda: sm.ksd(GAUSS, np.zeros((2, 2)), statistic="w"), ValueError, r"'w'"),
    "u statistic of one": (lambda: sm.ksd(GAUSS, [[0.0, 0.0]], statistic="u"), ValueError, r"two particles"),
    "gaussian cov": (
        lambda: Gaussian([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),
        ValueError,
        r"smallest eigenvalue is -1",
    ),
    "gaussian shapes": (lambda: Gaussian([0.0], np.eye(2)), ValueError, r"got \(1,\) and \(2, 2\)"),
    "condition number": (lambda: Gaussian.random(KEY, 5, 0.5), ValueError, r"at least 1, got 0.5"),
    "condition number in 1-d": (lambda: Gaussian.random(KEY, 1, 2.0), ValueError, r"dim >= 2"),
    "mixture weights": (lambda: GaussianMixture([[0.0]], weights=[1.0, 2.0]), ValueError, r"shape \(1,\)"),
    "rbm shapes": (
        lambda: GaussBernoulliRBM(np.ones((3, 2)), np.ones(3), np.ones(3)),
        ValueError,
        r"\(3, 2\), \(3,\)",
    ),
    "rbm size": (lambda: GaussBernoulliRBM(np.ones((1, 30)), np.ones(1), np.ones(30)), ValueError, r"2\^30"),
    "tempered dims": (
        lambda: sm.tempered(Gaussian([0.0], [[1.0]]), GAUSS, 0.5),
        ValueError,
        r"dim=1 and dim=2",
    ),
    "temperature": (lambda: sm.tempered(GAUSS, GAUSS, 1.5), ValueError, r"between 0 and 1, got 1.5"),
    "features that are no kernel": (
        lambda: sm.stein_equation(lambda x: x[0], GAUSS, np.eye(2), np.zeros((3, 2))),
        TypeError,
        r"kernel must be a kernel such as RBF\(\) or Polynomial\(2\)",
    ),
    "values of f for other points": (
        lambda: sm.stein_equation(np.zeros(4), GAUSS, sm.Linear(), np.zeros((3, 2))),
        ValueError,
        r"its values at the 3 points, got an array of shape \(4,\)",
    ),
    "f that is not finite": (
        lambda: sm.stein_equation(lambda x: jnp.log(x[0]), GAUSS, sm.Linear(), np.array([[1.0, 0.0], [-1.0, 0.0]])),
        ValueError,
        r"f is not finite at 1 of 2 points, the first of them point 1",
    ),
    "negative ridge": (
        lambda: sm.stein_equation(lambda x: x[0], GAUSS, sm.Linear(), np.zeros((3, 2)), ridge=-1.0),
        ValueError,
        r"ridge must be a number >= 0, got -1.0",
    ),
    "more unpenalised images than points": (
        lambda: sm.stein_equation(lambda x: x[0], GAUSS, sm.Linear() + sm.RBF(), np.ones((5, 2))),
        ValueError,
        r"fits its 6 feature images without a penalty.*got 5",
    ),
    "certify with particles of another dimension": (
        lambda: sm.certify(GAUSS, sm.Linear(), np.zeros((5, 3))),
        ValueError,
        r"certify: particles of shape \(5, 3\) have dimension 3, but the target has dim=2",
    ),
    "coefficients of other points": (
        lambda: sm.MatchingSet(GAUSS, sm.RBF(1.0), np.eye(2)).norm(np.eye(2), np.ones(3)),
        ValueError,
        r"2 coefficients are needed, one a point; got shape \(3,\)",
    ),
}


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the tests' own type checks, which would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind, match="(?s)" + message):
        call()
