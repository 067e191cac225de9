"""Several modes and the evidence, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import multivariate_normal

import steinmatch as sm
from steinmatch.adaptive.evidence import Evidence, bridge, evidence_bound, in_all
from steinmatch.adaptive.modes import Confined, combined
from steinmatch.adaptive.verdict import Error
from steinmatch.coordinates import AffineMap
from steinmatch.measures.weights import Layout
from steinmatch.targets import Evaluations


def mixture(means, sds, shares):
    """Its log density, mean and sd."""
    means, sds, shares = (np.asarray(part, float) for part in (means, sds, shares))
    d = means.shape[1]

    def log_density(x):
        logs = -0.5 * jnp.sum(((x[None, :] - means) / sds[:, None]) ** 2, axis=1) - d * jnp.log(sds) + jnp.log(shares)
        return jax.nn.logsumexp(logs)

    mean = shares @ means
    return sm.Target(log_density, dim=d), mean, np.sqrt(shares @ (sds[:, None] ** 2 + (means - mean) ** 2))


CASES = {
    "90:10": ([[0.0, 0.0], [8.0, 0.0]], [1.0, 1.0], [0.9, 0.1]),
    "three": ([[0.0, 0.0], [9.0, 0.0], [0.0, 12.0]], [1.0, 0.7, 1.5], [0.5, 0.3, 0.2]),
    "spike and slab": ([[0.0, 0.0], [0.0, 0.0]], [0.02, 3.0], [0.5, 0.5]),
}


@pytest.fixture(scope="module", params=CASES)
def fitted(request):
    means, sds, shares = CASES[request.param]
    target, mean, sd = mixture(means, sds, shares)
    return sm.fit(target, progress=False), shares, mean, sd


def test_modes_are_found_and_weighed(fitted):
    fit, shares, mean, sd = fitted
    assert fit.converged and f"{len(shares)} modes with shares" in fit.reason
    np.testing.assert_allclose(sorted(mode.share for mode in fit.modes), sorted(shares), atol=0.01)
    assert all(abs(s - m.share) <= 4.0 * m.error + 1e-3 for s, m in zip(sorted(shares), sorted(fit.modes), strict=True))
    assert np.all(np.abs(fit.mean - mean) / sd < 0.02) and np.all(np.abs(fit.sd / sd - 1.0) < 0.02)
    np.testing.assert_allclose(fit.weights.sum(), 1.0)


def test_the_evidence_is_that_of_all_modes(fitted):
    """The components are normal densities without (2 pi)^(d/2), d = 2."""
    found = fitted[0].log_evidence
    assert abs(found.estimate - np.log(2.0 * np.pi)) < 0.02 and found.error < 0.02


def test_fits_of_several_modes_are_kept_and_not_walked_on(fitted, tmp_path):
    fit = fitted[0]
    evidence = fit.log_evidence
    fit.save(tmp_path / "fit.nc")
    again = sm.load(tmp_path / "fit.nc")
    np.testing.assert_allclose([m.share for m in again.modes], [m.share for m in fit.modes])
    assert again.log_evidence == evidence
    with pytest.raises(ValueError, match="modes with chains of their own"):
        fit.walk(100)
    assert len(sm.fit(fit.target, init=fit, progress=False).modes) == len(fit.modes)


def test_modes_of_a_score_alone_are_not_weighed():
    target, _, _ = mixture([[-6.0], [6.0]], [1.0, 1.0], [0.5, 0.5])
    fit = sm.fit(sm.Target(score=jax.grad(target.log_density), dim=1), max_gradients=100_000, progress=False)
    assert not fit.converged and "several modes" in fit.reason and "not weighed" in fit.reason
    with pytest.raises(ValueError, match="score alone"):
        _ = fit.log_evidence


VARIANCES = np.arange(1.0, 51.0)
DESIGN, RESPONSE = (np.random.default_rng(3).normal(size=shape) for shape in ((30, 20), 30))


def regression(b):
    """Normal noise and prior, with their constants."""
    squares = jnp.sum((RESPONSE - DESIGN @ b) ** 2) + jnp.sum(b**2)
    return -0.5 * squares - 0.5 * (30 + 20) * np.log(2.0 * np.pi)


MARGINAL = multivariate_normal(cov=np.eye(30) + DESIGN @ DESIGN.T)
EVIDENCES = {
    "normal": (lambda x: -0.5 * jnp.sum((x - 3.0) ** 2 / VARIANCES), 50, 0.5 * np.sum(np.log(2.0 * np.pi * VARIANCES))),
    "t8": (
        lambda x: jnp.sum(-4.5 * jnp.log1p(x**2 / 8.0)),
        5,
        5 * (gammaln(4.0) - gammaln(4.5) + 0.5 * np.log(8.0 * np.pi)),
    ),
    "conjugate regression": (regression, 20, MARGINAL.logpdf(RESPONSE)),
    "log-gamma": (lambda x: jnp.sum(3.0 * x - jnp.exp(x)), 4, 4 * np.log(2.0)),
}


@pytest.mark.parametrize("name", EVIDENCES)
def test_evidence_against_closed_forms(name):
    log_density, dim, truth = EVIDENCES[name]
    fit = sm.fit(sm.Target(log_density, dim=dim), progress=False)
    assert fit.converged and len(fit.modes) == 1 and fit.modes[0].share == 1.0
    assert abs(fit.log_evidence.estimate - truth) < 0.02
    assert abs(fit.log_evidence.estimate - truth) < 4.0 * fit.log_evidence.error + 1e-6


def test_a_conjugate_regression():
    """log marginal likelihoods of two regressions in closed form, and their Bayes factor."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [0.5, 0.0, -0.3] + rng.normal(size=40)

    def model(columns):
        rows = x[:, :columns]
        covariance = np.eye(40) + rows @ rows.T
        truth = -0.5 * y @ np.linalg.solve(covariance, y) - 0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1]

        def log_density(b):
            likelihood = -0.5 * jnp.sum((y - rows @ b) ** 2) - 20.0 * jnp.log(2.0 * jnp.pi)
            return likelihood - 0.5 * jnp.sum(b**2) - 0.5 * columns * jnp.log(2.0 * jnp.pi)

        return sm.fit(sm.Target(log_density, dim=columns), progress=False), truth

    (small, low), (large, high) = model(1), model(3)
    table = sm.compare({"one column": small, "three": large})
    assert table["three"]["log_evidence"] == pytest.approx(high, abs=1e-3)
    best = "three" if high > low else "one column"
    assert table.names[0] == best and abs(table.log_bayes_factor[1] - abs(high - low)) < 1e-3
    assert table.probability.sum() == pytest.approx(1.0) and best in str(table)
    with pytest.raises(TypeError, match="give fits by name"):
        sm.compare([small])
    with pytest.raises(TypeError, match="must be a Fit"):
        sm.compare({"a": 1})


def test_bridge_against_quadrature():
    """Between N(0, 1) and a skewed density, whose draws are exact."""
    rng = np.random.default_rng(1)
    z, x = rng.normal(size=4000), np.log(rng.gamma(3.0, size=(40, 32, 2))) - 1.0

    def log_w(z):
        return 3.0 * (z + 1.0) - np.exp(z + 1.0) + 0.5 * z**2 + 0.5 * np.log(2.0 * np.pi)

    found = bridge(log_w(z), log_w(x).ravel(), Layout(40, 32, 2))
    assert abs(found.estimate - np.log(2.0)) < 4.0 * found.error < 0.1
    whole = in_all([Evidence(np.log(3.0), 0.1), Evidence(np.log(1.0), 0.0)])
    assert whole.estimate == pytest.approx(np.log(4.0)) and whole.error == pytest.approx(0.075)
    assert not np.isfinite(bridge(np.full(8, -np.inf), np.zeros(128), Layout(2, 32, 2)).error)


def test_errors_of_shares_enter_those_of_moments():
    """Two points at 0 and 1, equal shares: a relative error e of an evidence moves the mean by e / 4, e / 2 sds.

    Less than a draw's mass is known to nobody: 1 / n counts in either evidence.
    """
    n = 400
    values = [np.zeros((n, 1)), np.ones((n, 1))]
    none = Error(np.zeros(1), np.zeros(1))
    found = combined(values, [np.full(n, 1.0 / n)] * 2, [none, none], [Evidence(0.0, 0.1), Evidence(0.0, 0.0)])
    relative = np.sqrt(0.1**2 + 2.0 / n**2)
    assert found.error.mean[0] == pytest.approx(relative / 2.0, rel=1e-12) and found.modes[0].share == 0.5
    assert found.modes[0].error == pytest.approx(relative / 4.0, rel=1e-12)


def test_a_score_that_is_not_the_gradient_is_refused():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    with pytest.raises(ValueError, match="score is not the gradient of log_density"):
        sm.fit(sm.Target(log_density, score=lambda x: -2.0 * x, dim=3), progress=False)
    assert sm.fit(sm.Target(log_density, score=lambda x: -x, dim=3), progress=False).converged


def test_improper_directions_are_named():
    fit = sm.fit(sm.Target(lambda x: -0.5 * x[0] ** 2 + 0.0 * x[1], dim=2), max_gradients=20_000, progress=False)
    assert not fit.converged and "improper in x[1]:" in fit.reason


def test_a_confined_target_is_the_target_in_its_part_and_zero_elsewhere():
    target, _, _ = mixture([[0.0, 0.0], [6.0, 0.0]], [1.0, 1.0], [0.5, 0.5])
    frames = [AffineMap(jnp.array(centre), jnp.eye(2)) for centre in ([0.0, 0.0], [6.0, 0.0])]
    points = np.random.default_rng(0).uniform(-3.0, 9.0, size=(200, 2))
    parts = [Evaluations(Confined(target, frames, k))(points) for k in range(2)]
    whole, scores = Evaluations(target)(points)
    inside = points[:, 0] < 3.0  # equal normals: the plane half way
    for (values, own), mine in zip(parts, (inside, ~inside), strict=True):
        np.testing.assert_array_equal(values[mine], whole[mine])
        assert (values[~mine] == -np.inf).all()
        np.testing.assert_allclose(own[mine], scores[mine], rtol=1e-12)


def test_the_bound_is_below_the_evidence_by_the_divergence():
    """log Z = log(2 pi) of a standard normal's kernel in two dimensions; through a frame twice as wide the bound is
    below it by KL(N(0, 4 I) || N(0, I)) = 3 - log 4.
    """
    evaluate = Evaluations(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2))
    exact = evidence_bound(evaluate, AffineMap(np.zeros(2), np.eye(2)), 0)
    assert exact.estimate == pytest.approx(np.log(2.0 * np.pi), abs=1e-12) and exact.error < 1e-12
    wide = evidence_bound(evaluate, AffineMap(np.zeros(2), 2.0 * np.eye(2)), 0)
    assert wide.estimate == pytest.approx(np.log(2.0 * np.pi) - 3.0 + np.log(4.0), abs=4.0 * wide.error)
