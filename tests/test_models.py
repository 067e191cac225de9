"""Models as people write them: structure made of data, plates by size, labelled rows, priors that depend on data."""

import json
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import steinmatch as sm
from steinmatch.records.cmdstan import read_cmdstan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pymc as pm

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(1)
GROUP = np.repeat([0, 1, 2], [4, 5, 6])
Y = np.array([1.0, -1.0, 2.0])[GROUP] + RNG.normal(size=15)
# Each group's mean under N(0, 10) and y ~ N(mean, 1): precision n + 1/100.
MEANS = np.array([Y[g == GROUP].sum() / (np.sum(g == GROUP) + 0.01) for g in range(3)])
SDS = np.array([(np.sum(g == GROUP) + 0.01) ** -0.5 for g in range(3)])


@pytest.fixture(scope="module", autouse=True)
def lenient():
    """NumPyro's and PyMC's own code promotes types and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def of_values(group, y=None):
    size = len(np.unique(group))
    with numpyro.plate("groups", size):
        m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


def of_largest(group, y=None):
    with numpyro.plate("groups", int(group.max()) + 1):
        m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


def of_number(group, n, y=None):
    with numpyro.plate("groups", n):
        m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "data"),
    [(of_values, {}), (of_largest, {}), (of_number, {"n": GROUP.max() + 1}), (of_number, {"n": np.array(3)})],
    ids=["unique", "largest", "integer of NumPy", "array of no dimension"],
)
def test_structure_may_come_from_data(model, data):
    fit = sm.fit(sm.from_numpyro(model, GROUP, y=Y, **data), progress=False)
    assert fit.converged
    np.testing.assert_allclose(fit.mean["m"], MEANS, atol=0.02 * SDS.min())
    np.testing.assert_allclose(fit.sd["m"], SDS, rtol=0.02)
    again = fit.update(y=Y + 1.0, progress=False)
    np.testing.assert_allclose(again.mean["m"] - fit.mean["m"], SDS**2 * np.bincount(GROUP), atol=0.02)


def test_a_model_with_keywords_of_its_own():
    def model(X, **data):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * X, 1.0), obs=data.get("y"))

    x = np.arange(4.0)
    fit = sm.fit(sm.from_numpyro(model, x, y=2.0 * x), progress=False)
    assert fit.update(y=-2.0 * x, progress=False).mean["b"] == pytest.approx(-fit.mean["b"], abs=0.02)
    assert fit.predict(X=np.ones(2))["y"].shape == (len(fit.particles), 2)


def test_observations_that_the_model_transforms_are_not_given_with_new_data():
    def model(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("log_y", dist.Normal(b * X, 1.0), obs=None if y is None else jnp.log(y))

    x = np.arange(4.0)
    fit = sm.fit(sm.from_numpyro(model, x, y=np.exp(x)), progress=False)
    assert fit.predict(X=np.ones(7))["log_y"].shape == (len(fit.particles), 7)


def test_a_function_of_predict_takes_no_data():
    fit = sm.fit(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1), progress=False)
    with pytest.raises(ValueError, match="cannot be given X"):
        fit.predict(lambda p: p, X=np.ones(2))


def test_tolerances_stay_and_fits_of_kernels_are_not_updated():
    target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    fit = sm.fit(target, tol=0.3, progress=False)
    assert fit.update(target, progress=False).tol == 0.3 and fit.walk(10, progress=False).tol == 0.3
    with pytest.raises(ValueError, match="of a kernel"):
        sm.fit(target, 10, kernel=sm.Linear(), progress=False).update(target)


def test_numbers_in_a_data_file_are_sizes(tmp_path):
    """Eight normal observations of unknown mean: its sd is (8 + 1)^(-1/2)."""
    (tmp_path / "model.py").write_text(
        "import numpyro, numpyro.distributions as dist\n"
        "def model(n, y):\n"
        "    m = numpyro.sample('m', dist.Normal(0.0, 1.0))\n"
        "    with numpyro.plate('rows', n):\n"
        "        numpyro.sample('y', dist.Normal(m, 1.0), obs=y)\n"
    )
    (tmp_path / "data.json").write_text(json.dumps({"n": 8, "y": [1.0] * 8}))
    command = [sys.executable, "-m", "steinmatch", "fit", "model.py:model", "--data", "data.json", "--json"]
    done = subprocess.run([*command, "--out", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["m"]["mean"] == pytest.approx(8.0 / 9.0, abs=0.01)


@pytest.fixture(scope="module")
def labelled():
    """Rows with labels, and a prior whose mean is data: b ~ N(prior, 1), y ~ N(b x, 1)."""
    with pm.Model(coords={"row": ["a", "b", "c", "d"]}) as model:
        prior = pm.Data("prior", 5.0)
        x = pm.Data("x", np.ones(4), dims="row")
        b = pm.Normal("b", prior, 1.0)
        pm.Normal("y", b * x, 1.0, observed=pm.Data("observed", np.zeros(4), dims="row"), dims="row")
    return model, sm.fit(sm.from_pymc(model), progress=False)


def test_pymc_predicts_from_the_posterior_where_priors_depend_on_data(labelled):
    """b | y ~ N(1, 1/5), not N(5, 1)."""
    fit = labelled[1]
    assert fit.mean["b"] == pytest.approx(1.0, abs=0.01)
    y = fit.predict(seed=0)["y"]
    assert fit.weights @ y.mean(axis=1) == pytest.approx(1.0, abs=0.1)


def test_pymc_takes_more_rows_than_there_are_labels(labelled):
    model, fit = labelled
    y = fit.predict(x=np.full(6, 2.0), observed=np.zeros(6))["y"]
    assert y.shape == (len(fit.particles), 6) and fit.weights @ y.mean(axis=1) == pytest.approx(2.0, abs=0.1)
    named = fit.predict(x=np.full(2, 2.0), observed=np.zeros(2), coords={"row": ["e", "f"]})["y"]
    assert named.shape[1] == 2 and list(model.coords["row"]) == ["a", "b", "c", "d"]


def test_a_warm_up_that_cmdstan_saved_is_no_draw(tmp_path):
    path = tmp_path / "draws.csv"
    settings = "# num_samples = 2\n#  num_warmup = 4\n#     save_warmup = true\n#     thin = 2 \n"
    path.write_text(settings + "lp__,a\n" + "".join(f"-1,{i}\n" for i in range(4)))
    np.testing.assert_array_equal(read_cmdstan([path])["a"], [[2.0, 3.0]])
    path.write_text(path.read_text().replace("save_warmup = true", "save_warmup = 0 (Default)"))
    assert read_cmdstan([path])["a"].shape == (1, 4)
