"""Frames: laws for every one of them, the pull-back identity, and the bound's gradient as a mean Stein image."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.coordinates import (
    AbstractFrame,
    AffineMap,
    Composed,
    LowRank,
    Order,
    Pair,
    Parent,
    PulledBack,
    Spline,
    colour_all,
    log_dets,
    pull_scores,
    push_scores,
    whiten_all,
)
from steinmatch.coordinates.plainly import derivatives, placed, rows, unplaced
from steinmatch.solvers.affine import Affine

D = 4


def _parent() -> Parent:
    rng = np.random.default_rng(1)
    grid, knots = np.linspace(-3.0, 3.0, 7), np.array([-4.0, -1.5, 0.5, 2.0, 5.0])
    means, log_scales = rng.normal(size=(5, D - 1)), 0.5 * rng.normal(size=(5, D - 1))
    units = np.eye(D - 1) + np.tril(rng.normal(size=(5, D - 1, D - 1)), -1)
    return Parent.over((grid, np.sinh(0.5 * grid) + 0.3 * grid), knots, means, units * np.exp(log_scales)[:, None, :])


def _pair() -> Pair:
    rng = np.random.default_rng(3)
    grid, across = np.linspace(-3.0, 3.0, 7), np.array([-2.0, -0.5, 0.4, 1.7])
    knots = rng.normal(size=(9, 2))
    quantiles = np.exp(0.3 * rng.normal(size=(4, 1))) * np.sinh(0.4 * grid) + 0.3 * grid + rng.normal(size=(4, 1))
    means, scales = rng.normal(size=(9, D - 2)), np.exp(0.3 * rng.normal(size=(9, D - 2)))
    units = np.eye(D - 2) + np.tril(rng.normal(size=(9, D - 2, D - 2)), -1)
    plane = np.array([0.3, -1.0]), np.array([[0.8, 0.0], [0.5, 1.3]])
    places = np.sinh(0.5 * grid) + 0.3 * grid
    return Pair.over(plane, grid, places, across, quantiles, knots, means, units * scales[:, None, :])


def _low_rank() -> LowRank:
    rng = np.random.default_rng(4)
    whole = LowRank.over(rng.normal(size=D), np.exp(0.3 * rng.normal(size=D)), *rng.normal(size=(2, D, 2)))
    return whole.stretched(rng.normal(size=D), np.exp(0.3 * rng.normal(size=D))).turned(*rng.normal(size=(2, D, 1)))


def _unsheared() -> Parent:
    rng = np.random.default_rng(5)
    grid, knots = np.linspace(-3.0, 3.0, 7), np.array([-4.0, -1.5, 0.5, 2.0, 5.0])
    places = np.sinh(0.5 * grid) + 0.3 * grid
    return Parent.unsheared(
        (grid, places), knots, rng.normal(size=(5, D - 1)), np.exp(0.5 * rng.normal(size=(5, D - 1)))
    )


def test_a_few_matrices_mix_to_all_shears_within_the_tolerance():
    rng = np.random.default_rng(2)
    knots, r = np.linspace(-2.0, 2.0, 9), 6
    basis = np.tril(rng.normal(size=(3, r, r)), -1)
    mixing = np.stack([np.ones(9), knots, 0.02 * knots**2], axis=1)
    scales = np.exp(rng.normal(size=(1, r)) + 0.3 * knots[:, None])
    units = np.eye(r) + np.tensordot(mixing, basis, 1)
    means, grid = np.zeros((9, r)), np.linspace(-3.0, 3.0, 7)
    whole = Parent.over((grid, grid), knots, means, units * scales[:, None, :])
    assert whole.shears.shape[0] == 9
    found = np.tensordot(np.asarray(whole.mixing), np.asarray(whole.shears), 1)
    np.testing.assert_allclose(found, units - np.eye(r), atol=1e-12)
    for tolerance in (1e-8, 1e-2, 1.0):
        few = Parent.over((grid, grid), knots, means, units * scales[:, None, :], tolerance)
        assert few.shears.shape[0] <= 3
        off = np.tensordot(np.asarray(few.mixing), np.asarray(few.shears), 1) - (units - np.eye(r))
        ratio = np.exp(np.mean(np.log(scales), axis=0))
        assert np.max(0.5 * np.sum((off * ratio / ratio[:, None]) ** 2, axis=(1, 2))) <= tolerance


ROOT = np.array([[1.0, 0.0, 0.0, 0.0], [0.4, 2.0, 0.0, 0.0], [-0.3, 0.2, 0.5, 0.0], [0.1, 0.0, -0.4, 1.5]])
FRAMES: dict[str, AbstractFrame] = {
    "affine": AffineMap(jnp.array([1.0, -2.0, 0.5, 0.0]), jnp.asarray(ROOT)),
    "order": Order(jnp.array([2, 0, 3, 1])),
    "parent": _parent(),
    "pair": _pair(),
    "low rank": _low_rank(),
    "parent without shears": Composed((_low_rank().without(2), Order(jnp.array([2, 0, 3, 1])), _unsheared())),
    "composed": Composed((Order(jnp.array([2, 0, 3, 1])), _parent())),
}
TWO_PARENTS = Composed((FRAMES["composed"], Composed((Order(jnp.array([1, 3, 2, 0])), _parent()))))
IN_PAIR = Composed((FRAMES["order"], FRAMES["pair"]))


def _log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4 + 0.3 * jnp.sin(x[1] * x[2])


TARGET = sm.Target(_log_density, dim=D)


@pytest.fixture(scope="module", params=FRAMES)
def frame(request):
    return FRAMES[request.param]


@pytest.fixture(scope="module")
def z():
    return jnp.asarray(np.random.default_rng(0).normal(size=(6, D)) * 1.5)


def test_every_frame_is_in_the_registry():
    assert {type(frame) for frame in FRAMES.values()} == {
        kind for kind in AbstractFrame.__subclasses__() if kind.__module__.startswith("steinmatch")
    }


def test_inverse_and_log_determinant(frame, z):
    np.testing.assert_allclose(whiten_all(frame, colour_all(frame, z)), z, rtol=1e-9, atol=1e-9)
    jacobians = jax.vmap(jax.jacfwd(frame.colour))(z)
    np.testing.assert_allclose(log_dets(frame, z), np.linalg.slogdet(jacobians)[1], rtol=1e-10, atol=1e-12)


def test_pulled_back_score_is_the_gradient_of_the_pulled_back_density(frame, z):
    pulled = PulledBack(TARGET, frame)
    expected = jax.vmap(jax.grad(pulled.value))(z)
    np.testing.assert_allclose(jax.vmap(pulled.score)(z), expected, rtol=1e-9, atol=1e-9)
    scores = jax.vmap(TARGET.score)(colour_all(frame, z))
    np.testing.assert_allclose(pull_scores(frame, z, scores), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(push_scores(frame, z, expected), scores, rtol=1e-7, atol=1e-8)


def test_derivatives_of_single_coordinates(frame, z):
    """|grad x_j|^2, grad x_j . v and the Laplacian of x_j, by autodiff."""
    own, v = np.asarray(z), np.random.default_rng(6).normal(size=z.shape)
    found = rows(frame, own, v)
    jacobians, hessians = jax.vmap(jax.jacfwd(frame.colour))(z), jax.vmap(jax.hessian(frame.colour))(z)
    np.testing.assert_allclose(found.squares, np.sum(jacobians**2, axis=2), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.along, np.einsum("nij,nj->ni", jacobians, v), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.laplacian, np.einsum("nijj->ni", hessians), rtol=1e-9, atol=1e-8)


def test_a_coordinate_taken_out_of_the_low_rank_depends_on_no_other():
    alone = _low_rank().without(2)
    root = jax.jacfwd(alone.colour)(jnp.zeros(D))
    others = np.delete(np.arange(D), 2)
    assert np.all(root[2, others] == 0.0) and np.all(root[others, 2] == 0.0)


def test_stein_equations_in_z_are_stein_equations_in_x(frame, z):
    """(P_pi . g)(z) = (P_p . h)(x) with h(x) = T'(z) g(z)."""
    pulled = PulledBack(TARGET, frame)

    def g(z):
        return jnp.stack([jnp.sin(z[1]), z[0] * z[2], jnp.cos(z[0]), z[3] * z[1]])

    def h(x):
        z = frame.whiten(x)
        return jax.jvp(frame.colour, (z,), (g(z),))[1]

    @jax.jit
    @jax.vmap
    def both(point):
        x = frame.colour(point)
        here = pulled.score(point) @ g(point) + jnp.trace(jax.jacfwd(g)(point))
        return here, TARGET.score(x) @ h(x) + jnp.trace(jax.jacfwd(h)(x))

    here, there = both(z)
    np.testing.assert_allclose(here, there, rtol=1e-7, atol=1e-7)


def test_the_bounds_gradient_is_a_mean_stein_image(z):
    """dB/dtheta = mean_i (P_p . h)(x_i) with h = dT/dtheta o T^-1; for the parent's means and log scales."""
    parent = _parent()

    def with_theta(theta):
        return Parent(
            parent.quantiles,
            parent.places,
            parent.given,
            parent.means + theta[0],
            parent.log_scales + theta[1],
            parent.mixing,
            parent.shears,
        )

    def bound(theta):
        pulled = PulledBack(TARGET, with_theta(theta))
        return jnp.mean(jax.vmap(pulled.value)(z))

    gradient = jax.grad(bound)(jnp.zeros(2))
    for i in range(2):
        direction = jnp.eye(2)[i]

        def field(x, direction=direction):
            at = parent.whiten(x)
            return jax.jvp(lambda t: with_theta(t).colour(at), (jnp.zeros(2),), (direction,))[1]

        @jax.jit
        @jax.vmap
        def images(x, field=field):
            return TARGET.score(x) @ field(x) + jnp.trace(jax.jacfwd(field)(x))

        np.testing.assert_allclose(np.mean(images(colour_all(parent, z))), gradient[i], rtol=1e-7, atol=1e-9)


def test_numpy_frames_agree_with_jax(frame, z):
    points = np.asarray(z)
    found = placed(frame, points)
    np.testing.assert_allclose(found.x, colour_all(frame, z), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.log_det, log_dets(frame, z), rtol=1e-10, atol=1e-10)
    scores = np.random.default_rng(2).normal(size=points.shape)
    np.testing.assert_allclose(found.pull(scores), pull_scores(frame, z, jnp.asarray(scores)), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(unplaced(frame, found.x), points, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("frame", [FRAMES["affine"], FRAMES["composed"], TWO_PARENTS, IN_PAIR])
def test_numpy_derivatives_agree_with_autodiff(frame, z):
    jacobians, laplacians = derivatives(frame, np.asarray(z))
    np.testing.assert_allclose(jacobians, jax.vmap(jax.jacfwd(frame.colour))(z), rtol=1e-8, atol=1e-8)
    hessians = jax.vmap(jax.hessian(frame.colour))(z)
    np.testing.assert_allclose(laplacians, np.trace(hessians, axis1=2, axis2=3), rtol=1e-7, atol=1e-7)


def test_splines_are_natural_cubic_splines():
    """Against SciPy's; linear beyond the knots."""
    from scipy.interpolate import CubicSpline

    knots, values = np.array([-2.0, -0.5, 0.3, 1.0, 4.0]), np.array([1.0, -1.0, 0.5, 2.0, 0.0])
    spline = Spline.over(knots)
    x = np.linspace(-2.0, 4.0, 31)
    found = [float(spline.weights(jnp.asarray(at)) @ values) for at in x]
    np.testing.assert_allclose(found, CubicSpline(knots, values, bc_type="natural")(x), rtol=1e-9, atol=1e-9)
    beyond = [float(spline.weights(jnp.asarray(at)) @ values) for at in (5.0, 6.0, 7.0)]
    np.testing.assert_allclose(beyond[2] - beyond[1], beyond[1] - beyond[0], rtol=1e-9)


def test_a_kernel_pulled_back_through_any_frame(z):
    """k(T^-1 x, T^-1 y), and its mean gradient by autodiff."""
    frame = FRAMES["composed"]
    x = colour_all(frame, z)
    kernel = sm.Whitened(sm.Linear(), frame)
    np.testing.assert_allclose(kernel(x[0], x[1]), sm.Linear()(z[0], z[1]), rtol=1e-9)
    weights = jnp.full(6, 1.0 / 6)
    expected = jnp.mean(jax.vmap(jax.jacfwd(kernel.phi))(x), axis=0)
    np.testing.assert_allclose(kernel.mean_gradient(x, weights), expected, rtol=1e-9, atol=1e-10)


def test_the_affine_phase_raises_the_same_bound():
    """With no parent the frame is the affine phase's: its equations are the bound's stationary points."""
    target, d = sm.Target(_log_density, dim=3), 3
    fit = sm.fit(target, 40, kernel=sm.Linear(), solver=Affine(), progress=False)
    own = np.asarray(whiten_all(AffineMap(jnp.asarray(fit.frame.shift), jnp.asarray(fit.frame.root)), fit.particles))

    def bound(theta):
        shift, stretch = theta
        root = jnp.asarray(fit.frame.root) @ (jnp.eye(d) + 0.5 * (stretch + stretch.T))
        x = (jnp.asarray(fit.frame.shift) + shift)[None, :] + jnp.asarray(own) @ root.T
        return jnp.mean(jax.vmap(target.log_density)(x)) + jnp.linalg.slogdet(root)[1]

    gradient = jax.grad(bound)((jnp.zeros(d), jnp.zeros((d, d))))
    for part in gradient:
        np.testing.assert_allclose(part, 0.0, atol=2e-4)
