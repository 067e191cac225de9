"""Draws of other samplers, in every form they come in, and what weights make of them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import steinmatch as sm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

pytestmark = pytest.mark.filterwarnings("ignore")
Y = np.array([1.2, 0.4, 2.3, 1.1, 0.9])


def model(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(mu, sigma).expand([5]), obs=y)


def log_density(p):
    return (
        -0.125 * p["mu"] ** 2
        - 0.5 * p["sigma"] ** 2
        - 5.0 * jnp.log(p["sigma"])
        - 0.5 * jnp.sum(((Y - p["mu"]) / p["sigma"]) ** 2)
    )


def truth():
    """Means and sds of mu and sigma, on a fine grid."""
    mu, sigma = np.meshgrid(np.linspace(-4, 6, 1201), np.geomspace(0.05, 8, 1201), indexing="ij")
    logs = np.asarray(
        jax.vmap(jax.vmap(lambda m, s: log_density({"mu": m, "sigma": s})))(jnp.asarray(mu), jnp.asarray(sigma))
    )
    weights = np.exp(logs - logs.max()) * sigma
    weights /= weights.sum()
    mean = np.array([np.sum(weights * mu), np.sum(weights * sigma)])
    return mean, np.sqrt(np.array([np.sum(weights * mu**2), np.sum(weights * sigma**2)]) - mean**2)


@pytest.fixture(scope="module", autouse=True)
def lenient():
    """NumPyro's and PyMC's own code promotes types and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def target():
    return sm.Target.from_parameters({"mu": (), "sigma": sm.positive}, log_density)


@pytest.fixture(scope="module")
def mcmc():
    found = MCMC(
        NUTS(model), num_warmup=500, num_samples=500, num_chains=2, chain_method="sequential", progress_bar=False
    )
    found.run(jax.random.key(3), y=Y)
    return found


def test_sharpened_moments_are_nearer_to_the_truth(mcmc, target):
    mean, sd = truth()
    found = sm.sharpen(mcmc, target)
    after = np.abs(found.after.mean - mean) / sd, np.abs(found.after.sd / sd - 1.0)
    before = np.abs(found.before.mean - mean) / sd, np.abs(found.before.sd / sd - 1.0)
    assert max(map(np.max, after)) < 0.4 * max(map(np.max, before))
    assert np.all(after[0] <= 3.0 * found.after.error.mean) and np.all(after[1] <= 3.0 * found.after.error.sd)
    assert found.after.error.largest < 0.6 * found.before.error.largest
    assert found.agree and 500 < found.ess <= 1000 and found.n_gradients <= 1024
    assert "sharpened" in str(found)
    assert found.as_dict()["parameters"]["mu"]["after_mean"] == found.after.mean[0]


def test_all_forms_of_draws_are_the_same_draws(mcmc, target):
    by_name = mcmc.get_samples(group_by_chain=True)
    arviz = az.from_numpyro(mcmc)
    free = np.stack([np.asarray(by_name["mu"]), np.log(np.asarray(by_name["sigma"]))], axis=-1)
    expected = sm.sharpen(free, target)
    assert expected.n_chains == 2
    for form in (mcmc, arviz, dict(by_name), {k: np.asarray(v) for k, v in by_name.items()}):
        found = sm.sharpen(form, target)
        np.testing.assert_allclose(found.draws, free.reshape(-1, 2), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.after.mean, expected.after.mean, rtol=1e-4)
    numpyro_target = sm.from_numpyro(model, y=Y)
    np.testing.assert_allclose(sm.sharpen(mcmc, numpyro_target).after.mean, expected.after.mean, rtol=1e-4)
    plain = sm.Target(
        lambda x: log_density({"mu": x[0], "sigma": jnp.exp(x[1])}) + x[1],
        dim=2,
        constrain=lambda x: {"mu": x[0], "sigma": jnp.exp(x[1])},
    )
    np.testing.assert_allclose(sm.sharpen(arviz, plain).after.mean, expected.after.mean, rtol=1e-4)


def test_arviz_gets_chains_and_weights(mcmc, target):
    found = sm.sharpen(mcmc, target)
    data = found.to_arviz()
    assert dict(data.posterior.sizes) == {"chain": 2, "draw": 500}
    weights = np.asarray(data.sample_stats["weight"])
    np.testing.assert_allclose(np.sum(weights * np.asarray(data.posterior["mu"])), found.after.mean[0], rtol=1e-9)


def test_draws_of_pymc():
    import pymc as pm

    with pm.Model() as pymc_model:
        mu = pm.Normal("mu", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", mu, sigma, observed=Y)
    rng = np.random.default_rng(0)
    given = {"mu": rng.normal(1.0, 0.4, size=(1, 300)), "sigma": np.exp(rng.normal(-0.2, 0.3, size=(1, 300)))}
    found = sm.sharpen(az.from_dict(posterior=given), sm.from_pymc(pymc_model))
    np.testing.assert_allclose(
        np.sort(found.draws.ravel()), np.sort(np.concatenate([given["mu"][0], np.log(given["sigma"][0])]))
    )


def test_draws_that_are_not_of_the_target_are_called_so(target):
    draws = np.random.default_rng(1).normal(size=(2000, 2)) * np.array([0.4, 0.3]) + np.array([2.0, -0.2])
    found = sm.sharpen(draws, target)
    assert not found.agree and "DISAGREE" in str(found)


@pytest.mark.parametrize(
    ("draws", "word"),
    [
        ({"mu": np.zeros(50)}, "no variable .?'sigma'"),
        ({"mu": np.zeros((2, 3, 50)), "sigma": np.ones((2, 3, 50))}, "must have shape"),
        (np.zeros((10, 2)), "too few"),
        (np.zeros((100, 3)), "dim=2"),
    ],
)
def test_bad_draws(target, draws, word):
    with pytest.raises(ValueError, match=word):
        sm.sharpen(draws, target)
