"""Stein images against autodiff, weights against the regression they generalise, errors against simulation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.coordinates import AffineMap, LowRank, PulledBack
from steinmatch.measures import images
from steinmatch.measures.images import (
    FAMILIES,
    OWN_DEGREE,
    all_images,
    cubic_images,
    linear_images,
    own_images,
    too_heavy,
    values_at,
)
from steinmatch.measures.weights import FLOOR, CrossFit, Layout, SingleFit, nearest_weights, ridge_solve, spread

D = 3
FRAME = AffineMap(jnp.array([0.5, 0.0, -1.0]), jnp.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [0.1, -0.2, 1.3]]))


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.2 * jnp.exp(x[0]) + 0.1 * x[1] * x[2]


def constrain(x):
    return {"a": jnp.exp(x[0]), "b": x[1:] * x[0]}


@pytest.fixture(scope="module")
def draws():
    pulled = PulledBack(sm.Target(log_density, dim=D, constrain=constrain), FRAME)
    z = np.random.default_rng(0).normal(size=(9, D))
    scores = np.asarray(jax.vmap(pulled.score)(jnp.asarray(z)))
    return pulled, z, scores, values_at(pulled, z, scores)


def image(pulled, field, z):
    """P . g = s . g + div g, by autodiff."""
    at = jnp.asarray(z)
    return pulled.score(at) @ field(at) + jnp.trace(jax.jacfwd(field)(at))


def test_linear_and_cubic_images_agree_with_autodiff(draws):
    pulled, z, scores, _ = draws
    linear = linear_images(z, scores).reshape(-1, D, D)
    for i, j in ((0, 0), (1, 2), (2, 1)):
        expected = [image(pulled, lambda y, i=i, j=j: y[i] * jnp.eye(D)[j], point) for point in z]
        np.testing.assert_allclose(linear[:, i, j], expected, rtol=1e-10, atol=1e-12)
    cubic = cubic_images(z, scores)
    assert cubic.shape[1] == D * (D + 1) * (D + 2) // 6
    potentials = {
        0: lambda y: (y[0] ** 3 - 3.0 * y[0]) / np.sqrt(6.0),  # He_3
        D: lambda y: (y[0] ** 2 - 1.0) / np.sqrt(2.0) * y[1],
        D + D * (D - 1): lambda y: y[0] * y[1] * y[2],
    }
    for column, h in potentials.items():
        expected = [image(pulled, jax.grad(h), point) for point in z]
        np.testing.assert_allclose(cubic[:, column], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("degree", range(1, OWN_DEGREE + 1))
def test_own_images_agree_with_autodiff(draws, degree):
    pulled, z, _, values = draws
    mean, sd = np.array([1.0, 0.2, -0.3]), np.array([2.0, 0.5, 1.5])
    found = own_images(values, mean, sd, degree)
    polynomial = np.polynomial.hermite_e.HermiteE.basis(degree).convert(kind=np.polynomial.Polynomial).coef
    factor = np.sqrt(float(np.prod(np.arange(1, degree + 1))))

    def value(y, j):
        tree = pulled.constrain(y)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])[j]

    for j in range(3):

        def h(y, j=j):
            return jnp.polyval(jnp.asarray(polynomial[::-1]), (value(y, j) - mean[j]) / sd[j]) / factor

        expected = [image(pulled, jax.grad(h), point) for point in z]
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-8, atol=1e-8)


def test_values_that_jax_cannot_differentiate(draws):
    """By differences of the constrained values, as for Stan programs."""
    _, z, scores, exact = draws

    def host(x):
        return jax.pure_callback(
            lambda y: np.exp(np.asarray(y)[..., :1]),
            jax.ShapeDtypeStruct((1,), jnp.float64),
            x,
            vmap_method="expand_dims",
        )

    blind = PulledBack(sm.Target(log_density, dim=D, constrain=host), FRAME)
    found = values_at(blind, z, scores)
    for name in ("value", "along", "square", "laplacian"):
        np.testing.assert_allclose(getattr(found, name)[:, 0], getattr(exact, name)[:, 0], rtol=1e-4, atol=1e-6)


def test_families_are_nested_and_count_their_columns(draws):
    _, z, scores, values = draws
    psi = all_images(FAMILIES[-1], z, scores, values, np.zeros(3), np.ones(3))
    for smaller, larger in itertools.pairwise(FAMILIES):
        assert np.all(smaller.columns(D, 3) <= larger.columns(D, 3)) or larger.own < smaller.own
    assert psi.shape[1] == len(FAMILIES[-1].columns(D, 3))


def test_images_that_few_values_make_up_are_not_used():
    """Of a log-normal value own fields of degree 3 and 4 are too heavy; of a normal one none is."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4096, 2))
    pulled = PulledBack(
        sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2, constrain=lambda x: jnp.stack([jnp.exp(2.0 * x[0]), x[1]])),
        AffineMap(jnp.zeros(2), jnp.eye(2)),
    )
    values = values_at(pulled, z, -z)
    mean, sd = values.value.mean(axis=0), values.value.std(axis=0)
    heavy = too_heavy(all_images(FAMILIES[-1], z, -z, values, mean, sd), 2, 2)
    own = heavy[2 : 2 + 2 * OWN_DEGREE].reshape(OWN_DEGREE, 2)
    assert own.tolist() == [[False, False], [False, False], [True, False], [True, False]]
    assert not heavy[:2].any() and not heavy[2 + 2 * OWN_DEGREE :].any()


def test_weights_solve_the_equations_and_are_positive():
    psi = np.random.default_rng(1).normal(size=(200, 12)) + 0.1
    found = nearest_weights(psi)
    np.testing.assert_allclose(found.weights.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.weights @ psi, 0.0, atol=1e-10)
    assert found.weights.min() >= 0.99 * FLOOR / 200
    np.testing.assert_allclose(found.ess, 1.0 / np.sum(found.weights**2))


def test_weights_are_the_regression_where_none_is_at_the_floor():
    """Nearest weights are linear in psi: n w_i = 1 - mean psi . S^-1 (psi_i - mean psi), S the covariance."""
    psi = 0.3 * np.random.default_rng(2).normal(size=(500, 3)) + 0.02
    mean = psi.mean(axis=0)
    expected = (1.0 - (psi - mean) @ np.linalg.solve(np.cov(psi.T, ddof=0), mean)) / 500
    np.testing.assert_allclose(nearest_weights(psi).weights, expected, rtol=1e-9)


def test_dependent_equations_are_solved_and_contradictory_ones_refused():
    psi = np.random.default_rng(3).normal(size=(100, 4)) + 0.1
    found = nearest_weights(np.concatenate([psi, psi[:, :2] - psi[:, 2:]], axis=1))
    np.testing.assert_allclose(found.weights @ psi, 0.0, atol=1e-9)
    assert nearest_weights(np.abs(psi)) is None


def test_cross_fit_predicts_draws_that_it_did_not_see():
    rng = np.random.default_rng(4)
    psi, folds = rng.normal(size=(80, 5)), np.arange(80) % 4
    functions = psi @ rng.normal(size=(5, 2)) + 0.1 * rng.normal(size=(80, 2))
    control = CrossFit(functions, psi, folds).control(np.array([0, 2, 4]))
    for k in range(4):
        train, held = folds != k, folds == k
        design = np.concatenate([np.ones((train.sum(), 1)), psi[train][:, [0, 2, 4]]], axis=1)
        beta = np.linalg.lstsq(design, functions[train], rcond=None)[0]
        np.testing.assert_allclose(control[held], psi[held][:, [0, 2, 4]] @ beta[1:], rtol=1e-6, atol=1e-8)


def test_ridge_solve_of_a_singular_system():
    basis = np.random.default_rng(5).normal(size=(6, 3))
    right = basis @ np.ones((3, 1))
    np.testing.assert_allclose(basis @ basis.T @ ridge_solve(basis @ basis.T, right), right, atol=1e-5)


def test_standard_errors_know_of_siblings():
    """Chains of a group share half of their variance: the error of the mean over 4000 repetitions."""
    rng = np.random.default_rng(6)
    layout = Layout(3, 10, 2)
    groups = rng.normal(size=(1, 10, 1, 4000))
    values = np.sqrt(0.5) * (groups + rng.normal(size=(1, 10, 2, 4000))) + np.zeros((3, 1, 1, 1))
    found = spread(values.reshape(60, 4000), layout)
    np.testing.assert_allclose(np.sqrt(np.mean(found.error**2)), found.mean.std(), rtol=0.08)
    np.testing.assert_allclose(found.between.mean(), 0.5, rtol=0.15)


def test_inverse_gamma_moments_are_exact():
    """E s2 = 1 / (a - 1), E s2^2 = 1 / ((a - 1)(a - 2)): own fields of degree 1 and 2 know both."""
    a = 3.0
    target = sm.Target(lambda x: -a * x[0] - jnp.exp(-x[0]), dim=1, constrain=lambda x: {"s2": jnp.exp(x[0])})
    draws = -np.log(np.random.default_rng(7).gamma(a, size=(400, 1)))
    found = sm.sharpen(draws, target)
    np.testing.assert_allclose(found.after.mean, 0.5, rtol=1e-6)
    np.testing.assert_allclose(found.after.sd, 0.5, rtol=1e-5)
    assert found.before.error.largest > 10.0 * found.after.error.largest


def test_stein_weights_of_a_kernels_features():
    """The linear kernel's equations: then mean and covariance of a Gaussian are exact."""
    target = sm.targets.Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))
    draws = np.asarray(target.sample(jax.random.key(1), 300)) * 1.1 + 0.1
    for features in (sm.Linear(), 2):
        weights = sm.stein_weights(target, draws, features=features)
        np.testing.assert_allclose(weights @ draws, target.mean, atol=1e-9)
        centred = draws - np.asarray(target.mean)
        np.testing.assert_allclose((weights[:, None] * centred).T @ centred, target.cov, atol=1e-9)
        assert weights.min() > 0.0 and 200 < weights.ess <= 300 and weights.residual < 1e-8
    scores = np.asarray(jax.vmap(target.score)(jnp.asarray(draws)))
    np.testing.assert_allclose(sm.stein_weights(target, draws, 2, scores), weights, rtol=1e-9)
    np.testing.assert_allclose(sm.certify(target, sm.Linear(), draws, weights).residual, 0.0, atol=1e-8)


def test_too_many_equations_are_solved_in_part():
    target = sm.targets.Gaussian(np.zeros(3), np.eye(3))
    draws = np.random.default_rng(8).normal(size=(15, 3)) + 1.0
    weights = sm.stein_weights(target, draws, features=3)
    assert weights.min() > 0.0 and weights.residual > 1e-3
    np.testing.assert_allclose(weights.sum(), 1.0)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"draws": np.zeros((10, 2))}, "same in all draws"),
        ({"draws": np.ones((10, 3))}, "dim=2"),
        ({"draws": np.random.default_rng(0).normal(size=(50, 2)), "features": 7}, "degree 1, 2"),
        ({"draws": np.random.default_rng(0).normal(size=(50, 2)), "scores": np.zeros((3, 2))}, "shape of the draws"),
    ],
)
def test_bad_input(arguments, word):
    target = sm.targets.Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match=word):
        sm.stein_weights(target, **arguments)


@pytest.mark.parametrize("n", [100, 401])
def test_numbers_of_draws_that_fill_no_batches(n):
    target = sm.targets.Gaussian([1.0, -1.0], np.diag([1.0, 4.0]))
    draws = np.random.default_rng(n).normal(size=(n, 2)) * [1.0, 2.0] + [1.0, -1.0]
    weights = sm.stein_weights(target, draws)
    assert weights.shape == (n,) and weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights @ draws, [1.0, -1.0], atol=1e-6)


def test_values_of_one_coordinate_each_have_the_derivatives_of_all_values(monkeypatch):
    d, rng = 6, np.random.default_rng(8)
    frame = LowRank.over(rng.normal(size=d), np.exp(rng.normal(size=d)), *(0.3 * rng.normal(size=(2, d, 2))))

    def alone(x):
        return {"a": jnp.exp(x[3]), "b": jax.nn.sigmoid(x[::-1]), "c": jnp.ones(2)}

    z, scores = rng.normal(size=(2, 7, d))
    pulled = PulledBack(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=d, constrain=alone), frame)
    expected = values_at(pulled, z, scores)
    monkeypatch.setattr(images, "_MANY", 1)
    for found, one in zip(vars(values_at(pulled, z, scores)).values(), vars(expected).values(), strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-12, atol=1e-12)
    mixed = PulledBack(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=d, constrain=lambda x: x[0] * x), frame)
    found = values_at(mixed, z, scores)
    monkeypatch.setattr(images, "_MANY", 100)
    np.testing.assert_allclose(found.along, values_at(mixed, z, scores).along, rtol=1e-12)


def test_fits_of_each_function_on_its_own_images():
    rng, layout = np.random.default_rng(9), Layout(8, 8, 2)
    parts = list(rng.normal(size=(2, layout.n, 3)))
    functions = rng.normal(size=(layout.n, 6)) + np.tile(parts[0], 2)
    fit = SingleFit(functions, parts, layout.folds())
    control, everywhere = fit.control(), fit.at(parts)
    for j in range(6):
        own = np.stack([part[:, j % 3] for part in parts], axis=1)
        alone = CrossFit(functions[:, [j]], own, layout.folds())
        np.testing.assert_allclose(control[:, [j]], alone.control(np.arange(2)), atol=1e-9)
        np.testing.assert_allclose(everywhere[:, [j]], own @ alone.coefficients(np.arange(2)), atol=1e-9)


def test_single_fields_are_for_values_too_many_for_joint_ones():
    assert images.SINGLE not in images.affordable(10**5, 300, 300)
    assert [family.name for family in images.affordable(10**4, 1000, 1000)][-1] == images.SINGLE.name
    assert images.next_affordable(6000, 1000, 1000) == 10**4
