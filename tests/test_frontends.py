"""Models of NumPyro, PyMC and Stan, and named parameters: one log density, one answer."""

import importlib.util
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import steinmatch as sm
from steinmatch.targets import Evaluations

pytestmark = pytest.mark.filterwarnings("ignore")  # PyMC and ArviZ announce their next versions

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def usual_promotion():
    """Other packages' models promote types and ranks; the strictness of the other tests is for this library's code."""
    before = jax.config.jax_numpy_dtype_promotion, jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_dtype_promotion", before[0])
    jax.config.update("jax_numpy_rank_promotion", before[1])


@pytest.fixture(scope="module")
def forms():
    """Eight schools in its forms, each with the order of its coordinates in (eta, mu, log tau)."""
    jax_form = example("eight_schools").target
    found = {"parameters": jax_form, "numpyro": sm.from_numpyro(example("eight_schools_numpyro").model)}
    found["pymc"] = sm.from_pymc(example("eight_schools_pymc").model)
    if shutil.which("g++"):
        found["stan"] = sm.from_stan(EXAMPLES / "eight_schools.stan", EXAMPLES / "eight_schools.json")
    return found


def to_form(name, x):
    """Points (eta, mu, log tau) in the coordinates of a form; PyMC keeps the order of definition."""
    return np.concatenate([x[:, 8:], x[:, :8]], axis=1) if name == "pymc" else x


def from_form(name, g):
    return np.concatenate([g[:, 2:], g[:, :2]], axis=1) if name == "pymc" else g


def test_log_densities_and_gradients_agree(forms):
    x = np.random.default_rng(0).normal(size=(20, 10))
    assert len(forms) >= 3
    results = {name: Evaluations(target)(to_form(name, x)) for name, target in forms.items()}
    value, gradient = results["parameters"]
    for name, (other, slope) in results.items():
        np.testing.assert_allclose(other - other[0], value - value[0], atol=1e-8, err_msg=name)
        np.testing.assert_allclose(from_form(name, slope), gradient, atol=1e-8, err_msg=name)


def test_constrained_values_agree(forms):
    x = np.random.default_rng(1).normal(size=(5, 10))
    expected = {"mu": x[:, 8], "tau": np.exp(x[:, 9]), "theta[2]": x[:, 8] + np.exp(x[:, 9]) * x[:, 2]}
    for name, target in forms.items():
        names, values = sm.targets.constrained_values(target, to_form(name, x))
        for wanted, column in expected.items():
            if wanted in names:
                np.testing.assert_allclose(values[:, names.index(wanted)], column, rtol=1e-10, err_msg=name)
        assert "theta[2]" in names or name == "parameters"


@pytest.mark.slow
def test_fits_agree(forms):
    found = {name: sm.fit(target, max_seconds=60.0).summary() for name, target in forms.items()}
    for name, summary in found.items():
        for parameter, mean, sd in (("mu", 4.41, 3.30), ("tau", 3.58, 3.15), ("eta[0]", 0.31, 0.99)):
            row = summary[parameter]
            assert abs(row["mean"] - mean) <= 0.06 * sd, (name, parameter, row)
            assert abs(row["sd"] / sd - 1.0) <= 0.09, (name, parameter, row)


def test_predictions(forms):
    fit = sm.fit(forms["numpyro"], 30, kernel=sm.Whitened(sm.Linear()), solver="affine")
    assert fit.predict(lambda values: values["mu"] + 1.0).shape == (30,)
    assert fit.predict()["obs"].shape == (30, 8)
    with pytest.raises(ValueError, match="predict"):
        sm.fit(forms["parameters"], 30, kernel="linear", solver="affine").predict()


def test_numpyro_predictions_are_drawn_anew_whatever_the_data_are_called():
    def model(counts):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.factor("tilt", -0.1 * rate)
        numpyro.sample("calls", dist.Poisson(rate), obs=counts)

    data = jnp.array([40.0, 44.0, 52.0])
    fit = sm.fit(sm.from_numpyro(model, data), 40, kernel=sm.Whitened(sm.Linear()), solver="affine")
    drawn = fit.predict(seed=3)
    assert set(drawn) == {"calls"} and drawn["calls"].shape == (40, 3)
    assert np.unique(np.asarray(drawn["calls"])).size > 10
    assert np.mean(drawn["calls"]) == pytest.approx(fit.predict(lambda values: values["rate"]).mean(), rel=0.1)


@pytest.mark.parametrize(
    ("spec", "log_density", "check"),
    [
        (sm.positive(3), lambda p: -jnp.sum(p["v"]), lambda v: v.min() > 0.0),
        (sm.interval(-1.0, 2.0), lambda p: 0.0 * p["v"], lambda v: v.min() > -1.0 and v.max() < 2.0),
        (sm.ordered(3), lambda p: -jnp.sum(p["v"] ** 2), lambda v: (np.diff(v, axis=-1) > 0.0).all()),
        (sm.simplex(3), lambda p: jnp.sum(jnp.log(p["v"])), lambda v: np.allclose(v.sum(axis=-1), 1.0)),
        (
            sm.cholesky_corr(3),
            lambda p: 0.0 * p["v"][0, 0],
            lambda v: np.allclose(np.einsum("nij,nij->ni", v, v), 1.0),
        ),
    ],
)
def test_constraints(spec, log_density, check):
    target = sm.Target.from_parameters({"v": spec}, log_density)
    x = np.random.default_rng(2).normal(size=(6, target.dim))
    value, score = Evaluations(target)(x)
    assert np.isfinite(value).all() and np.isfinite(score).all()
    assert check(np.asarray(jax.vmap(target.constrain)(jnp.asarray(x))["v"]))


def test_the_log_determinant_is_included():
    """An exponential variable: E v = 1, E v^2 = 2, by quadrature over the unconstrained line."""
    target = sm.Target.from_parameters({"v": sm.positive}, lambda p: -p["v"])
    x = np.linspace(-30.0, 6.0, 20001)[:, None]
    value, _ = Evaluations(target)(x)
    weights = np.exp(value) / np.exp(value).sum()
    np.testing.assert_allclose([weights @ np.exp(x[:, 0]), weights @ np.exp(2 * x[:, 0])], [1.0, 2.0], rtol=1e-6)


def test_bad_models_get_a_sentence():
    with pytest.raises(TypeError, match="shape such as"):
        sm.Target.from_parameters({"v": "positive"}, lambda p: 0.0)
    with pytest.raises(TypeError, match="NumPyro model"):
        sm.from_numpyro(3)
    with pytest.raises(TypeError, match=r"pymc\.Model"):
        sm.from_pymc(3)
    with pytest.raises(FileNotFoundError, match="no file"):
        sm.from_stan("nowhere.stan")


@pytest.mark.skipif(shutil.which("g++") is None, reason="a Stan program needs a C++ compiler")
def test_stan_says_what_is_wrong(forms):
    with pytest.raises(ValueError, match="does not accept these data"):
        sm.from_stan(EXAMPLES / "eight_schools.stan", {"J": 8})
    with pytest.raises(ValueError, match="stanc says"):
        sm.from_stan("parameters { real mu }\nmodel { }")
    old = "data { int N; real y[N]; }\nparameters { real mu; }\nmodel { y ~ normal(mu, 1); }"
    with pytest.raises(ValueError, match=r"array\[N\] real y|array keyword|new array syntax|`array`"):
        sm.from_stan(old, {"N": 2, "y": [0.0, 1.0]})
    assert not forms["stan"].differentiable


@pytest.mark.parametrize("form", ["numpyro", "pymc"])
def test_leave_one_out_agrees_with_the_conjugate_normal(form):
    # y_i ~ N(mu, 1), mu ~ N(0, s^2): y_i given the others is N(m, 1 + v), v = 1 / (n - 1 + 1 / s^2).
    y = np.random.default_rng(3).normal(0.7, 1.0, size=12)

    def exact(s):
        v = 1.0 / (len(y) - 1 + 1.0 / s**2)
        m = v * (y.sum() - y)
        return np.sum(-0.5 * np.log(2 * np.pi * (1 + v)) - 0.5 * (y - m) ** 2 / (1 + v))

    def target(s):
        if form == "pymc":
            pm = pytest.importorskip("pymc")
            with pm.Model() as model:
                pm.Normal("y", pm.Normal("mu", 0.0, s), 1.0, observed=y)
            return sm.from_pymc(model)
        return sm.from_numpyro(
            lambda y: numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, s)), 1.0), obs=y), y
        )

    fits = {"wide": sm.fit(target(3.0), progress=False), "tight": sm.fit(target(0.1), progress=False)}
    table = sm.compare(fits).loo
    for name, s in (("wide", 3.0), ("tight", 0.1)):
        assert table.loc[name, "elpd_loo"] == pytest.approx(exact(s), abs=0.1)  # not left out: 0.9 more
    assert table.index[0] == "wide"


def test_observations_computed_within_a_model_are_known():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("log_y", dist.Normal(mu, 1.0), obs=jnp.log(y))

    y = np.array([1.0, 2.0, 3.0])
    info = sm.from_numpyro(model, y).info
    assert info is not None
    np.testing.assert_allclose(info.observed["log_y"], np.log(y), rtol=1e-12)
