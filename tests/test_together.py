"""Many posteriors at once: frame and verdict in JAX against those of one fit, and fits against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch._types import as_numpy
from steinmatch.adaptive.frames import cloud, log_weights, normal_points
from steinmatch.adaptive.judging import Draws, constrained, families_of, judged
from steinmatch.adaptive.stacks import stacked, usual_parent
from steinmatch.adaptive.together import framed, points_of
from steinmatch.adaptive.verdict import judge
from steinmatch.coordinates import AffineMap
from steinmatch.measures.images import Values
from steinmatch.measures.weights import Layout
from steinmatch.targets import Evaluations

RNG = np.random.default_rng(5)
LAYOUT = Layout(16, 32, 2)


def _constrain(x):
    return {"a": jnp.exp(0.5 * x[0]), "b": x[1:]}


def _in_turn(values):
    return tuple(vars(values).values())


@pytest.fixture(autouse=True)
def rules_of_numpy():
    with as_numpy():
        yield


@pytest.mark.parametrize("tails", [False, True])
def test_the_verdict_is_that_of_one_fit(tails):
    d = 4
    target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=d, constrain=_constrain)
    z = RNG.standard_t(8, size=(LAYOUT.n, d)) if tails else RNG.normal(size=(LAYOUT.n, d))
    scores = -9.0 * z / (8.0 + z**2) if tails else -z
    begun = RNG.normal(size=(LAYOUT.groups, d))
    draws, start = Draws(jnp.asarray(z), jnp.asarray(scores)), Draws(jnp.asarray(begun), jnp.asarray(-begun))
    frame = AffineMap(jnp.zeros(d), jnp.eye(d))
    parts = jax.jit(lambda draws: _in_turn(constrained(target, frame, draws)))
    values, started = parts(draws), parts(start)
    found = jax.jit(lambda *given: judged(given[0], Values(*given[1]), given[2], Values(*given[3]), LAYOUT, 1e9))(
        draws, values, start, started
    )
    own = [Values(*map(np.asarray, part)) for part in (values, started)]
    families = families_of(LAYOUT.n, d, own[0].value.shape[1])
    expected = judge(z, scores, own[0], LAYOUT, (begun, -begun, own[1]), families)
    assert [None, *families][int(found.family)].name == expected.family  # type: ignore[union-attr]
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-9)
    np.testing.assert_allclose(found.error, np.concatenate(expected.error), rtol=1e-6, atol=1e-8)
    assert (bool(found.mixed), bool(found.agree)) == (expected.mixed, expected.agree)
    np.testing.assert_allclose(
        np.concatenate([found.mean, found.sd]), np.concatenate(expected.estimate), rtol=1e-9, atol=1e-10
    )


def test_the_frame_of_a_parent_is_nearly_exact():
    def funnel(x):
        return -0.5 * x[0] ** 2 / 2.25 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 1.5 * x[0]

    target = sm.Target(funnel, dim=4)
    found = jax.jit(lambda: framed(target, points_of(4, 0), 0))()
    assert not bool(found.lone)
    frame = jax.tree.map(np.asarray, found.frame)
    logs = log_weights(cloud(Evaluations(target, 16), frame, normal_points(512, 4, 9)))
    assert np.var(logs) < 0.01
    affine = jax.tree.map(np.asarray, jax.jit(lambda: framed(target, points_of(4, 0), None))().frame)
    assert np.var(log_weights(cloud(Evaluations(target, 16), affine, normal_points(512, 4, 9)))) > 0.3


def _log_prior(m):
    return -0.5 * jnp.sum(m**2) / 100.0


def _log_likelihood(m, y):
    return -0.5 * jnp.sum((y - m[None, :]) ** 2, axis=1)


def _normal_data(rows):
    return sm.Target.from_data(_log_prior, _log_likelihood, rows, dim=2)


@pytest.fixture(scope="module")
def normal_fits():
    rows = RNG.normal(size=(20, 30, 2)) + 3.0 * RNG.normal(size=(20, 1, 2))
    return rows, sm.fit_many(_normal_data(rows[0]), rows, progress=False)


def test_many_posteriors_walked_together_have_their_moments(normal_fits):
    rows, fits = normal_fits
    assert len(fits) == 20 and fits.converged.all()
    precision = 30.0 + 0.01
    np.testing.assert_allclose(fits.mean, rows.sum(axis=1) / precision, atol=0.02 / np.sqrt(precision))
    np.testing.assert_allclose(fits.sd, np.full((20, 2), precision**-0.5), rtol=0.02)


def test_each_of_them_is_a_fit(normal_fits):
    rows, fits = normal_fits
    one = fits[1]
    assert isinstance(one, sm.Fit) and one is fits[1] and "standard error" in one.reason
    np.testing.assert_allclose(one.mean, fits.mean[1], rtol=1e-9)
    np.testing.assert_allclose(one.weights @ one.particles, one.mean, rtol=1e-9)
    precision = 30.0 + 0.01
    alone = sm.fit(_normal_data(rows[1]), progress=False)
    np.testing.assert_allclose(one.log_evidence[0], alone.log_evidence[0], atol=0.02)
    assert one.rounds[-1].n_draws == len(one.particles) == one.layout.n
    np.testing.assert_allclose(one.expectation(lambda x: x[0] ** 2), one.mean[0] ** 2 + 1.0 / precision, rtol=0.01)


def test_arrays_that_are_no_data_are_seen():
    rows = RNG.normal(size=(4, 10, 2))
    assert stacked([_normal_data(one) for one in rows], list(rows)) is not None
    shifted = [_normal_data(one + k) for k, one in enumerate(rows)]
    assert stacked(shifted, list(rows)) is None


def test_the_usual_parent():
    fit = sm.fit(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2), progress=False)
    assert usual_parent([fit.walked.frame]) is None and usual_parent([]) is None
