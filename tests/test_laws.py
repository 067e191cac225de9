"""Every kernel of the registry faces the same laws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm
from steinmatch.kernels import AbstractKernel, AbstractRadialKernel, forms, fused, fused_waves, radial
from steinmatch.measures import stein
from tests.registry import KERNELS, PARTICLES, TARGET, D, N, held, numpy_kernel, numpy_velocity

SCORES = -(PARTICLES - TARGET.mean) @ np.linalg.inv(TARGET.cov)
WEIGHTS = np.linspace(0.5, 2.0, N)
FEATURES = [name for name in KERNELS if held(name).n_features(D) is not None]
RADIAL = [name for name in KERNELS if isinstance(held(name), AbstractRadialKernel)]
every_kernel = pytest.mark.parametrize("name", KERNELS)


def relative(a, b):
    return np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b)))


@eqx.filter_jit
def _gram(kernel, x):
    return jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(x))(x)


def _classes(cls):
    """All classes below, but abstract ones and those of tests."""
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("steinmatch."):
            if not sub.__abstractmethods__ and not sub.__name__.startswith("Abstract"):
                yield sub
            yield from _classes(sub)


def _used(kernel):
    """The classes of a kernel and of those that it is made of."""
    inner = [*getattr(kernel, "terms", ()), *([kernel.kernel] if hasattr(kernel, "kernel") else [])]
    return {type(kernel)}.union(*map(_used, inner))


def test_every_class_of_kernels_faces_the_laws():
    used = set().union(*(_used(kernel) for name in KERNELS for kernel in (KERNELS[name], held(name))))
    assert {cls.__name__ for cls in _classes(AbstractKernel)} - {cls.__name__ for cls in used} == {"MissingKernel"}


@every_kernel
def test_value_is_the_textbook_formula(name):
    kernel, reference = held(name), numpy_kernel(name)
    got = _gram(kernel, jnp.asarray(PARTICLES))
    want = [[np.real(reference(x.astype(complex), y.astype(complex))) for y in PARTICLES] for x in PARTICLES]
    assert relative(got, want) < 1e-13


@every_kernel
def test_symmetric_and_positive_semidefinite(name):
    kernel, x = held(name), jnp.asarray(PARTICLES)
    gram = np.asarray(_gram(kernel, x))
    assert relative(gram, gram.T) < 1e-14
    values = np.linalg.eigvalsh(gram)
    assert values[0] > -1e-13 * values[-1]


@every_kernel
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_public_velocity_is_the_double_loop(name, weights):
    want = numpy_velocity(numpy_kernel(name), PARTICLES, SCORES, weights)
    # The public function binds with seed 0, the registry with its own key: pass the bound kernel.
    got = sm.velocity(TARGET, held(name), PARTICLES, weights)
    assert relative(got, want) < 1e-12


@every_kernel
def test_direct_form_is_the_double_loop(name):
    want = numpy_velocity(numpy_kernel(name), PARTICLES, SCORES, WEIGHTS)
    weights = jnp.asarray(WEIGHTS / WEIGHTS.sum())
    got = forms.direct_velocity(held(name), jnp.asarray(PARTICLES), jnp.asarray(SCORES), weights)
    assert relative(got, want) < 1e-12


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("name", FEATURES + RADIAL)
def test_fast_forms_are_the_double_loop(name, blocked, monkeypatch):
    if blocked:
        monkeypatch.setattr("steinmatch._linalg.BLOCK_ENTRIES", 5 * N)  # several blocks, the last one padded
        monkeypatch.setattr(radial, "BLOCK_ENTRIES", 1)
    want = numpy_velocity(numpy_kernel(name), PARTICLES, SCORES, WEIGHTS)
    weights = jnp.asarray(WEIGHTS / WEIGHTS.sum())
    got = held(name).velocity(jnp.asarray(PARTICLES), jnp.asarray(SCORES), weights)
    assert relative(got, want) < 1e-12


@pytest.mark.parametrize("name", RADIAL)
def test_velocity_does_not_lose_digits_far_from_the_origin(name):
    """Matrix-product distances are taken of centred points: a shift of 1e4 costs no more than its rounding."""
    kernel = held(name)
    shifted = sm.targets.Gaussian(TARGET.mean + 1e4, TARGET.cov)
    got = sm.velocity(shifted, kernel, PARTICLES + 1e4)
    assert relative(got, sm.velocity(TARGET, kernel, PARTICLES)) < 1e-10


@every_kernel
def test_stein_kernel_closed_form_is_autodiff(name):
    kernel, x, s = held(name), jnp.asarray(PARTICLES), jnp.asarray(SCORES)
    autodiff = eqx.filter_jit(forms.autodiff_stein_matrix)(kernel, x, s, x, s)
    # Matern 3/2 has no second derivative along the diagonal for autodiff to find.
    off = ~np.eye(N, dtype=bool) if name == "matern 3/2" else np.ones((N, N), bool)
    closed = eqx.filter_jit(lambda k: k.stein_matrix(x, s, x, s))(kernel)
    assert relative(np.asarray(closed)[off], np.asarray(autodiff)[off]) < 1e-11
    assert np.isfinite(closed).all()


def test_matern_stein_kernel_on_the_diagonal():
    """At x = y: kappa = |s|^2 k(0) - 2 d g'(0), and g'(0) = -nu / (2 (nu - 1) h^2) for the Matern kernel."""
    x, s = jnp.asarray(PARTICLES), jnp.asarray(SCORES)
    for nu in (1.5, 2.5, 3.5):
        closed = sm.Matern(nu, bandwidth=0.7).stein_matrix(x, s, x, s)
        want = np.sum(SCORES**2, axis=1) + D * nu / ((nu - 1) * 0.7**2)
        assert relative(np.diagonal(closed), want) < 1e-12


@every_kernel
def test_stein_identity_under_exact_samples(name):
    """E_p[P_x k(x, y)] = 0 for any fixed y, within five standard errors of 20,000 exact draws."""
    kernel, y = held(name), jnp.asarray(PARTICLES[0])
    draws = jnp.asarray(TARGET.sample(jax.random.key(3), 20_000))
    images = np.asarray(jax.jit(jax.vmap(stein.stein_operator(lambda x: kernel(x, y), TARGET)))(draws))
    error = images.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(images.mean(axis=0)) < 5 * error).all()
    assert (error < 0.2 * np.abs(images).max()).all()


@pytest.mark.parametrize("name", FEATURES)
def test_mean_gradient_and_residual_are_autodiff(name):
    kernel, x = held(name), jnp.asarray(PARTICLES)
    jacobians = jax.jit(jax.vmap(jax.jacrev(kernel.phi)))(x)
    weights = WEIGHTS / WEIGHTS.sum()
    gradient = kernel.mean_gradient(x, jnp.asarray(weights))
    assert relative(gradient, np.tensordot(weights, jacobians, 1)) < 1e-13
    features = np.asarray(jax.jit(jax.vmap(kernel.phi))(x))
    want = np.einsum("n,nm,nd->md", weights, features, SCORES) + np.tensordot(weights, jacobians, 1)
    assert relative(sm.stein_residual(TARGET, kernel, PARTICLES, WEIGHTS), want) < 1e-13
    assert kernel.n_features(D) == features.shape[1] == len(kernel.feature_weights(D))


@every_kernel
def test_integer_weights_are_repetitions(name):
    """The velocity and the V-statistic are linear in the empirical measure once the bandwidth is held."""
    counts = np.array([1, 2, 3] * N)[:N]
    repeated = np.repeat(PARTICLES, counts, axis=0)
    kernel = held(name)
    first = np.cumsum(counts) - counts
    weighted = sm.velocity(TARGET, kernel, PARTICLES, counts.astype(float))
    assert relative(weighted, sm.velocity(TARGET, kernel, repeated)[first]) < 1e-12
    weighted = sm.ksd_squared(TARGET, PARTICLES, kernel, counts.astype(float))
    assert relative(weighted, sm.ksd_squared(TARGET, repeated, kernel)) < 1e-11


@every_kernel
def test_ksd_is_the_mean_of_the_stein_kernel(name):
    kernel, x, s = held(name), jnp.asarray(PARTICLES), jnp.asarray(SCORES)
    matrix = np.asarray(kernel.stein_matrix(x, s, x, s))
    assert sm.ksd_squared(TARGET, PARTICLES, kernel) == pytest.approx(matrix.mean(), rel=1e-11)
    assert sm.ksd(TARGET, PARTICLES, kernel) == pytest.approx(np.sqrt(matrix.mean()), rel=1e-11)
    distinct = (matrix.sum() - np.trace(matrix)) / (N * (N - 1))
    assert sm.ksd_squared(TARGET, PARTICLES, kernel, statistic="u") == pytest.approx(distinct, rel=1e-10)


@pytest.mark.parametrize("kernel", [sm.RBF(), sm.IMQ(), sm.LinearRandom(), sm.Linear() + 0.5 * sm.RBF()], ids=str)
def test_single_precision_is_near_double(kernel):
    target = sm.targets.Gaussian(3.0 * np.ones(4), np.diag([1.0, 2.0, 3.0, 4.0]))
    particles = target.sample(jax.random.key(0), 50) + 0.5
    exact = sm.velocity(target, kernel, particles)
    single = sm.velocity(target, kernel, particles, dtype="float32")
    assert single.dtype == np.float32
    assert np.linalg.norm(single - exact) < 1e-4 * np.linalg.norm(exact)
    with pytest.raises(ValueError, match="float32"):
        sm.velocity(target, kernel, particles, dtype="float16")


@pytest.mark.parametrize("n", [1, 50, 1100])
def test_fused_velocity_is_the_blocked_one(n, monkeypatch):
    """Interpreted: the tiles, their padding, and the split numbers, also as they are for many particles."""
    rng = np.random.default_rng(n)
    x, s, w = rng.normal(3.0, 2.0, size=(n, 5)), rng.normal(size=(n, 5)), rng.dirichlet(np.ones(n))
    kernel = sm.RBF(bandwidth=1.5).hold(jnp.asarray(x))
    exact = kernel.velocity(jnp.asarray(x), jnp.asarray(s), jnp.asarray(w))
    for many, tolerance in ((fused.MANY, 1e-5), (0, 1e-3)):
        monkeypatch.setattr(fused, "MANY", many)
        fused.rbf_velocity.clear_cache()
        found = fused.rbf_velocity(*map(jnp.asarray, (x, s, w)), jnp.asarray(1.5), interpret=True)
        assert np.linalg.norm(np.asarray(found) - np.asarray(exact)) < tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize(("n", "m"), [(1, 3), (50, 20), (2100, 150)])
def test_fused_waves_are_the_features(n, m):
    """Interpreted: tiles in both directions, their padding, split numbers, angles in turns."""
    rng = np.random.default_rng(n)
    x, s, w = rng.normal(30.0, 2.0, size=(n, 5)), rng.normal(size=(n, 5)), rng.dirichlet(np.ones(n))
    kernel = sm.RandomFourier(m, 1.5).bind(jax.random.key(1), jnp.asarray(x)).hold(jnp.asarray(x))
    exact = np.asarray(forms.feature_velocity(kernel, jnp.asarray(x), jnp.asarray(s), jnp.asarray(w)))
    parts = map(jnp.asarray, (x, s, w, kernel.frequencies, kernel.phases, 1.5))
    found = fused_waves.waves_velocity(*parts, interpret=True)
    assert found.dtype == np.float32
    assert np.linalg.norm(np.asarray(found) - exact) < 1e-5 * np.linalg.norm(exact)
