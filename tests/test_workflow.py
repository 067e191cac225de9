"""From model to publication: what users of NumPyro, PyMC and Stan do with a fit, beside closed forms and ArviZ."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import steinmatch as sm
from steinmatch.measures.weights import Layout
from steinmatch.records import inferencedata
from steinmatch.records.cmdstan import as_cmdstan, read_cmdstan
from steinmatch.records.inferencedata import from_chains, in_chains

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az
    import pymc as pm

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = X @ np.array([1.0, -0.5]) + RNG.normal(size=40)
NEW = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])


@pytest.fixture(scope="module", autouse=True)
def lenient():
    """NumPyro's and PyMC's own code promotes types and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def moments(y=Y):
    """Of a regression with unit noise and a standard normal prior."""
    cov = np.linalg.inv(X.T @ X + np.eye(2))
    return cov @ X.T @ y, cov


def numpyro_model(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("row", len(X)):
        numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)


@pytest.fixture(scope="module")
def numpyro_fit():
    return sm.fit(sm.from_numpyro(numpyro_model, X, y=Y), progress=False)


@pytest.fixture(scope="module")
def pymc_fit():
    with pm.Model(coords={"column": ["a", "b"]}) as model:
        x = pm.Data("X", X)
        y = pm.Data("observed", Y)
        b = pm.Normal("b", 0.0, 1.0, dims="column")
        pm.Normal("y", x @ b, 1.0, observed=y, shape=x.shape[0])
    return sm.fit(sm.from_pymc(model), progress=False)


PROGRAM = """
data { int<lower=1> N; vector[N] y; matrix[N, 2] X; }
parameters { vector[2] b; real<lower=0> unused; simplex[3] p; matrix[2, 3] m; }
transformed parameters { real sum_b = sum(b); }
model { b ~ normal(0, 1); unused ~ exponential(1); to_vector(m) ~ normal(0, 1); target += normal_lpdf(y | X * b, 1); }
generated quantities {
  vector[N] log_lik;
  array[N] real y_rep;
  for (i in 1:N) {
    log_lik[i] = normal_lpdf(y[i] | X[i] * b, 1);
    y_rep[i] = normal_rng(X[i] * b, 1);
  }
}
"""


@pytest.fixture(scope="module")
def stan_fit():
    if shutil.which("g++") is None:
        pytest.skip("a Stan program needs a C++ compiler")
    return sm.fit(sm.from_stan(PROGRAM, {"N": 40, "y": Y, "X": X}), progress=False)


@pytest.mark.parametrize("which", ["numpyro_fit", "pymc_fit", "stan_fit"])
def test_new_data(which, request):
    fit = request.getfixturevalue(which)
    mean, cov = moments()
    np.testing.assert_allclose(fit.mean["b"], mean, atol=0.02 * np.sqrt(np.diag(cov)).max())
    more = {"N": 3, "y": np.zeros(3)} if which == "stan_fit" else {}
    predicted = fit.predict(X=NEW, **more)["y_rep" if which == "stan_fit" else "y"]
    assert predicted.shape == (len(fit.particles), 3)
    sd = np.sqrt(1.0 + np.einsum("ni,ij,nj->n", NEW, cov, NEW))
    np.testing.assert_allclose(fit.weights @ predicted, NEW @ mean, atol=5.0 * sd.max() / np.sqrt(len(predicted)))
    np.testing.assert_allclose(predicted.std(axis=0), sd, rtol=0.15)
    again = fit.predict(seed=1)["y_rep" if which == "stan_fit" else "y"]
    assert again.shape == (len(fit.particles), 40)  # the data are back where they were


@pytest.mark.parametrize(("which", "name"), [("numpyro_fit", "y"), ("pymc_fit", "observed"), ("stan_fit", "y")])
def test_update(which, name, request):
    fit = request.getfixturevalue(which)
    updated = fit.update({name: Y + X[:, 0]}, progress=False)
    mean, cov = moments(Y + X[:, 0])
    assert updated.converged
    np.testing.assert_allclose(updated.mean["b"], mean, atol=0.02 * np.sqrt(np.diag(cov)).max())
    shifted = np.concatenate([np.ravel(value) for value in updated.to_arviz().observed_data.data_vars.values()])
    np.testing.assert_allclose(shifted, Y + X[:, 0])  # the new fit has the new data, the old one the old
    old = fit.to_arviz()
    likelihood = old.log_likelihood["log_lik" if which == "stan_fit" else "y"].values
    want = -0.5 * (Y - old.posterior["b"].values @ X.T) ** 2 - 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(likelihood, want, atol=1e-5)
    with pytest.raises(ValueError, match=r"no argument|no pm.Data|does not accept"):
        fit.update(N=-1, progress=False)
    with pytest.raises(ValueError, match="update"):
        fit.update(progress=False)


def test_update_with_a_target():
    first = sm.fit(sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=3), progress=False)
    second = first.update(sm.Target(lambda x: -0.5 * jnp.sum((x - 0.1) ** 2), dim=3), progress=False)
    np.testing.assert_allclose(second.mean, 0.1, atol=1e-3)
    assert second.n_gradients < first.n_gradients
    with pytest.raises(ValueError, match=r"update\(target\)"):
        first.update(y=1.0)


@pytest.mark.parametrize("which", ["numpyro_fit", "pymc_fit", "stan_fit"])
def test_arviz_takes_all_of_it(which, request):
    fit = request.getfixturevalue(which)
    data = fit.to_arviz(resample=True, posterior_predictive=True, prior=which != "stan_fit")
    groups = {"posterior", "sample_stats", "log_likelihood", "observed_data", "constant_data", "posterior_predictive"}
    assert groups <= set(data.groups())
    np.testing.assert_allclose(data.observed_data["y"], Y)
    np.testing.assert_allclose(data.constant_data["X"], X)
    table = az.summary(data, var_names=["b"], round_to="none")
    mean, cov = moments()
    np.testing.assert_allclose(table["mean"], mean, atol=3.0 * np.sqrt(np.diag(cov) / len(fit.particles)).max())
    assert np.all(np.asarray(table["r_hat"]) < 1.1) and np.all(np.asarray(table["ess_bulk"]) > 100)
    az.loo(data)
    az.plot_ppc(data, data_pairs={"y": "y_rep"} if which == "stan_fit" else None, num_pp_samples=5)
    az.plot_posterior(data, var_names=["b"])
    if which != "stan_fit":
        assert data.prior["b"].shape[1] == data.prior_predictive["y"].shape[1] == 500
    name = "log_lik" if which == "stan_fit" else "y"
    found = data.log_likelihood[name].values
    b = data.posterior["b"].values
    np.testing.assert_allclose(found, -0.5 * (Y - b @ X.T) ** 2 - 0.5 * np.log(2.0 * np.pi), atol=1e-5)
    weighted = fit.to_arviz()
    weights = weighted.sample_stats["weight"].values
    np.testing.assert_allclose(np.einsum("cd,cdi->i", weights, weighted.posterior["b"].values), fit.mean["b"])
    assert "certificate" not in vars(fit)


def test_model_coords_reach_arviz(pymc_fit, numpyro_fit):
    assert list(pymc_fit.to_arviz().posterior["b"].coords["column"].values) == ["a", "b"]
    assert "row" in numpyro_fit.to_arviz().log_likelihood["y"].dims


def test_arviz_one_gets_a_tree(numpyro_fit, monkeypatch, tmp_path):
    import xarray

    monkeypatch.delattr(az, "InferenceData")
    tree = numpyro_fit.to_arviz()
    assert isinstance(tree, xarray.DataTree)
    assert tree["posterior"]["b"].dims[:2] == ("chain", "draw")
    sharpened = sm.sharpen(numpyro_fit.to_arviz(resample=True), numpyro_fit.target)
    np.testing.assert_allclose(sharpened.after.mean, np.asarray(numpyro_fit.mean), atol=0.02)
    assert sm.compare(numpyro_fit, tree).agree
    numpyro_fit.write_csv(tmp_path / "draws.csv")
    assert "b" in (tmp_path / "draws.csv").read_text()


def test_chains_there_and_back():
    layout = Layout(6, 8, 2)
    values = np.arange(96.0)
    shown = in_chains(values, layout)
    assert shown.shape == (4, 24)
    np.testing.assert_array_equal(shown[0, :6], values[::16])  # the first chain, whole
    np.testing.assert_array_equal(from_chains(shown, layout), values)
    assert in_chains(np.arange(12800.0), Layout(200, 32, 2)).shape == (64, 200)
    weights = RNG.uniform(size=96)
    weights /= weights.sum()
    chosen = inferencedata.resampled_draws(weights, layout, 0)
    counts = np.bincount(chosen, minlength=96)
    assert np.abs(counts - 96 * weights).max() <= 1.0


def test_models_that_have_no_density():
    def discrete(y):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def thinned(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", len(y), subsample_size=5) as rows:
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y[rows])

    with pytest.raises(ValueError, match=r"discrete latent sites \(z\).*marginalise.*funsor"):
        sm.from_numpyro(discrete, Y)
    with pytest.raises(ValueError, match=r"plate 'N' is subsampled"):
        sm.from_numpyro(thinned, Y)
    with pytest.raises(TypeError, match=r"from_numpyro\(model"):
        sm.targets.check_target(numpyro_model, "fit")
    with pytest.raises(TypeError, match=r"from_stan\(program, data\)"):
        sm.targets.check_target("model.stan", "fit")
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(TypeError, match=r"from_pymc\(model\)"):
        sm.targets.check_target(model, "fit")


def test_potentials_and_custom_distributions_of_pymc():
    with pm.Model() as model:
        x = pm.CustomDist("x", logp=lambda value: -0.5 * (value - 2.0) ** 2)
        pm.Potential("more", -0.5 * (x - 2.0) ** 2)
    fit = sm.fit(sm.from_pymc(model), progress=False)
    assert fit.mean["x"] == pytest.approx(2.0, abs=0.01)
    assert fit.sd["x"] == pytest.approx(np.sqrt(0.5), rel=0.02)


def test_a_tree_of_parameters():
    example = {"layer": {"w": np.zeros((2, 3)), "b": 0.0}}
    target = sm.Target.from_pytree(
        lambda p: -0.5 * jnp.sum((p["layer"]["w"] - 1.0) ** 2) - 2.0 * p["layer"]["b"] ** 2, example
    )
    assert target.dim == 7 and "layer.b" in target.names
    fit = sm.fit(target, progress=False)
    np.testing.assert_allclose(fit.mean["layer.w"], np.ones((2, 3)), atol=0.01)
    assert fit.sd["layer.b"] == pytest.approx(0.5, rel=0.02)
    assert fit.expectation(lambda p: p["layer"]["b"] ** 2) == pytest.approx(0.25, rel=0.05)
    values = {f"layer.{name}": fit.predict(lambda p, name=name: p["layer"][name]) for name in ("w", "b")}
    again = sm.sharpen(values, target)
    np.testing.assert_allclose(again.draws, fit.particles, atol=1e-10)
    with pytest.raises(TypeError, match="an example of such a tree"):
        sm.Target.from_pytree(lambda p: 0.0, {})


def test_draws_of_cmdstan(stan_fit, tmp_path):
    """A file as CmdStan writes it, read back and sharpened: exact draws of the regression."""
    rng, (mean, cov) = np.random.default_rng(1), moments()
    n = 400
    values = {
        "b": rng.multivariate_normal(mean, cov, size=n),
        "unused": rng.exponential(size=n),
        "p": rng.dirichlet(np.ones(3), size=n),
        "m": rng.normal(size=(n, 2, 3)),
    }
    text = as_cmdstan(values, np.zeros(n), "model = regression")
    header = text.splitlines()[1].split(",")
    assert header[:3] == ["lp__", "b.1", "b.2"]
    assert header[-6:] == ["m.1.1", "m.2.1", "m.1.2", "m.2.2", "m.1.3", "m.2.3"]
    (tmp_path / "draws.csv").write_text(text)
    back = read_cmdstan([tmp_path / "draws.csv", tmp_path / "draws.csv"])
    np.testing.assert_allclose(back["m"][1], values["m"], rtol=1e-8)
    found = sm.sharpen(tmp_path / "draws.csv", stan_fit.target)
    index = found.names.index("b[0]")
    error = found.before.error.mean[index] * found.before.sd[index]
    assert abs(found.after.mean[index] - mean[0]) < 0.2 * error + 1e-3
    with pytest.raises(FileNotFoundError, match="no file"):
        sm.sharpen("nowhere.csv", stan_fit.target)
    stan_fit.write_csv(tmp_path / "own.csv")
    own = read_cmdstan([tmp_path / "own.csv"])
    np.testing.assert_allclose(own["b"].mean(axis=(0, 1)), mean, atol=0.02)
    assert own["sum_b"].shape == (1, len(stan_fit.particles))


def test_sharpen_where_people_already_are(pymc_fit):
    """A NumPyro MCMC by itself, and draws of PyMC with its model."""
    mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(numpyro_model), num_warmup=200, num_samples=300, progress_bar=False)
    mcmc.run(jax.random.key(0), X, y=Y)
    mean, cov = moments()
    unit = np.sqrt(np.diag(cov))
    found = sm.sharpen(mcmc)
    np.testing.assert_allclose(found.after.mean, mean, atol=0.02 * unit.max())
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        pm.Normal("y", X @ b, 1.0, observed=Y)
    drawn = np.random.default_rng(2).multivariate_normal(mean, cov, size=(2, 300))
    found = sm.sharpen(az.from_dict(posterior={"b": drawn}), model)
    np.testing.assert_allclose(found.after.mean, mean, atol=0.02 * unit.max())
    with pytest.raises(TypeError, match="give the target"):
        sm.sharpen(drawn)


def test_command_line(tmp_path):
    """The second run of a model has its compiled code; quiet means quiet."""
    (tmp_path / "model.py").write_text(
        "import jax.numpy as jnp\nimport steinmatch as sm\n"
        "target = sm.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2, names=('a', 'b'))\n"
    )

    def run(*words):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "STEINMATCH_CACHE": str(tmp_path / "cache")}
        command = [str(Path(sys.executable).with_name("steinmatch")), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    done = run("fit", "model.py", "-q", "--csv")
    assert done.returncode == 0 and done.stdout == "" and done.stderr == ""
    assert (tmp_path / "out/fit/draws.csv").read_text().splitlines()[1] == "lp__,a,b"
    kept = set((tmp_path / "cache" / "jax").iterdir())
    assert len(kept) > 3
    done = run("fit", "model.py", "--json")
    assert json.loads(done.stdout)["converged"]
    new = {path for path in set((tmp_path / "cache" / "jax").iterdir()) - kept if not path.name.endswith("-atime")}
    assert len(new) < 3  # nothing of the fit was compiled again
    assert run("--version").stdout == f"steinmatch {sm.__version__}\n"


def test_progress_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    sm.fit(sm.Target(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * x[0] ** 4, dim=2))
    assert "draws, error" in capsys.readouterr().err
