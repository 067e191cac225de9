"""Twelve everyday models in NumPyro with simulated data, two of them in PyMC and two in Stan."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

RNG_SEED = 7


class Everyday(NamedTuple):
    model: Callable
    data: dict[str, Any]


def _student_t(rng: np.random.Generator) -> Everyday:
    def student_t(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([4]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
        numpyro.sample("y", dist.StudentT(nu, X @ b, sigma), obs=y)

    X = rng.normal(size=(120, 4))
    y = X @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.standard_t(4, size=120)
    return Everyday(student_t, {"X": X, "y": y})


def _ar2(rng: np.random.Generator) -> Everyday:
    def ar2(y):
        c = numpyro.sample("c", dist.Normal(0.0, 1.0))
        phi = numpyro.sample("phi", dist.Normal(0.0, 0.5).expand([2]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(c + phi[0] * y[1:-1] + phi[1] * y[:-2], sigma), obs=y[2:])

    series = np.zeros(150)
    for t in range(2, 150):
        series[t] = 0.3 + 0.5 * series[t - 1] - 0.3 * series[t - 2] + 0.7 * rng.normal()
    return Everyday(ar2, {"y": series})


def _crossed(rng: np.random.Generator) -> Everyday:
    def crossed(subject, item, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
        scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([2]))
        with numpyro.plate("subjects", 25):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("items", 12):
            b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=mu + scales[0] * a[subject] + scales[1] * b[item]), obs=y)

    subject, item = (index.ravel() for index in np.meshgrid(np.arange(25), np.arange(12), indexing="ij"))
    logits = 0.3 + rng.normal(size=25)[subject] + 0.7 * rng.normal(size=12)[item]
    chosen = (rng.uniform(size=300) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)
    return Everyday(crossed, {"subject": subject, "item": item, "y": chosen})


def _simplex_ordered(rng: np.random.Generator) -> Everyday:
    def simplex_ordered(X, rating, counts):
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
        numpyro.sample("counts", dist.Multinomial(int(np.sum([24, 31, 9, 6])), shares), obs=counts)
        cut = numpyro.sample(
            "cut",
            dist.TransformedDistribution(
                dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
            ),
        )
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]))
        numpyro.sample("rating", dist.OrderedLogistic(X @ b, cut), obs=rating)

    X2 = rng.normal(size=(150, 2))
    latent = X2 @ np.array([1.0, -0.7]) + rng.logistic(size=150)
    data = {"X": X2, "rating": np.digitize(latent, [-1.0, 0.2, 1.5]), "counts": np.array([24, 31, 9, 6])}
    return Everyday(simplex_ordered, data)


def _gp_marginal(rng: np.random.Generator) -> Everyday:
    def gp_marginal(x, y):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.7))
        length = numpyro.sample("length", dist.LogNormal(0.0, 0.7))
        noise = numpyro.sample("noise", dist.HalfNormal(0.5))
        cov = scale**2 * jnp.exp(-0.5 * ((x[:, None] - x[None, :]) / length) ** 2)
        cov = cov + (noise**2 + 1e-6) * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), cov), obs=y)

    x = np.sort(rng.uniform(-3.0, 3.0, size=40))
    return Everyday(gp_marginal, {"x": x, "y": np.sin(1.5 * x) + 0.3 * rng.normal(size=40)})


def _gp_latent(rng: np.random.Generator) -> Everyday:
    def gp_latent(x, y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        length = numpyro.sample("length", dist.LogNormal(0.0, 0.5))
        level = numpyro.sample("level", dist.Normal(1.0, 1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([25]))
        cov = scale**2 * jnp.exp(-0.5 * ((x[:, None] - x[None, :]) / length) ** 2) + 1e-5 * jnp.eye(len(x))
        numpyro.sample("y", dist.Poisson(jnp.exp(level + jnp.linalg.cholesky(cov) @ z)), obs=y)

    x = np.linspace(-3.0, 3.0, 25)
    return Everyday(gp_latent, {"x": x, "y": rng.poisson(np.exp(1.0 + np.sin(x)))})


def _poisson_mixed(rng: np.random.Generator) -> Everyday:
    def poisson_mixed(group, x, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 25):
            a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + tau * a[group] + slope * x)), obs=y)

    group, x = np.repeat(np.arange(25), 6), rng.normal(size=150)
    counts = rng.poisson(np.exp(0.8 + 0.5 * rng.normal(size=25)[group] + 0.3 * x))
    return Everyday(poisson_mixed, {"group": group, "x": x, "y": counts})


def _lkj(rng: np.random.Generator) -> Everyday:
    def lkj(group, X, y):
        sds = numpyro.sample("sds", dist.HalfNormal(1.0).expand([2]))
        root = numpyro.sample("root", dist.LKJCholesky(2, 2.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([2]))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([12, 2]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        effects = mean + z @ (sds[:, None] * root).T
        numpyro.sample("y", dist.Normal(jnp.sum(effects[group] * X, axis=1), sigma), obs=y)

    group = np.repeat(np.arange(12), 10)
    X3 = np.column_stack([np.ones(120), rng.normal(size=120)])
    effects = np.array([1.0, 0.5]) + rng.multivariate_normal([0.0, 0.0], [[0.6, 0.3], [0.3, 0.4]], size=12)
    y = np.sum(effects[group] * X3, axis=1) + 0.5 * rng.normal(size=120)
    return Everyday(lkj, {"group": group, "X": X3, "y": y})


def _volatility(rng: np.random.Generator) -> Everyday:
    def volatility(y):
        mu = numpyro.sample("mu", dist.Normal(-1.0, 1.0))
        phi = numpyro.sample("phi", dist.Beta(10.0, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([50]))
        h, rows = sigma * z[0] / jnp.sqrt(1.0 - phi**2), []
        for t in range(50):
            h = h if t == 0 else phi * h + sigma * z[t]
            rows.append(h)
        numpyro.sample("y", dist.Normal(0.0, jnp.exp(0.5 * (mu + jnp.stack(rows)))), obs=y)

    h = np.zeros(50)
    for t in range(1, 50):
        h[t] = 0.9 * h[t - 1] + 0.3 * rng.normal()
    return Everyday(volatility, {"y": np.exp(0.5 * (h - 1.0)) * rng.normal(size=50)})


def _horseshoe(rng: np.random.Generator) -> Everyday:
    def horseshoe(X, y):
        tau = numpyro.sample("tau", dist.HalfCauchy(0.2))
        local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([10]))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([10]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        b = numpyro.deterministic("b", z * local * tau)
        numpyro.sample("y", dist.Normal(X @ b, sigma), obs=y)

    X4 = rng.normal(size=(80, 10))
    y = X4[:, 0] * 1.5 - X4[:, 1] + 0.7 * rng.normal(size=80)
    return Everyday(horseshoe, {"X": X4, "y": y})


def _zero_inflated(rng: np.random.Generator) -> Everyday:
    def zero_inflated(X, y):
        gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]))
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(X @ b)), obs=y)

    X5 = np.column_stack([np.ones(150), rng.normal(size=(150, 2))])
    counts = rng.poisson(np.exp(X5 @ np.array([0.8, 0.4, -0.3]))) * (rng.uniform(size=150) > 0.3)
    return Everyday(zero_inflated, {"X": X5, "y": counts})


def _network(rng: np.random.Generator) -> Everyday:
    def network(x, y):
        w = numpyro.sample("w", dist.HalfNormal(2.0).expand([3]))
        place = numpyro.sample(
            "place",
            dist.TransformedDistribution(
                dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
            ),
        )
        out = numpyro.sample("out", dist.Normal(0.0, 1.0).expand([3]))
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        hidden = jnp.tanh((x[:, None] - place) * w)
        numpyro.sample("y", dist.Normal(level + hidden @ out, sigma), obs=y)

    x = np.sort(rng.uniform(-3.0, 3.0, size=80))
    y = np.tanh(2.0 * (x + 1.5)) - np.tanh(2.0 * (x - 1.0)) + 0.2 * rng.normal(size=80)
    return Everyday(network, {"x": x, "y": y})


_MODELS = {
    "Student-t regression": _student_t,
    "AR(2)": _ar2,
    "crossed plates, logistic": _crossed,
    "simplex and ordered": _simplex_ordered,
    "GP, marginal": _gp_marginal,
    "GP, latent": _gp_latent,
    "Poisson mixed": _poisson_mixed,
    "LKJ varying slopes": _lkj,
    "stochastic volatility": _volatility,
    "horseshoe": _horseshoe,
    "zero-inflated counts": _zero_inflated,
    "small neural network": _network,
}


def everyday() -> dict[str, Everyday]:
    """The models by name, with their data."""
    rng = np.random.default_rng(RNG_SEED)
    return {name: make(rng) for name, make in _MODELS.items()}


def in_pymc(name: str, data: dict[str, Any]) -> Any:
    """The same model in PyMC; None where there is none."""
    import pymc as pm

    if name == "Student-t regression":
        with pm.Model() as model:
            b = pm.Normal("b", 0.0, 2.0, shape=4)
            sigma = pm.HalfNormal("sigma", 2.0)
            nu = pm.Gamma("nu", 2.0, 0.1)
            pm.StudentT("y", nu=nu, mu=data["X"] @ b, sigma=sigma, observed=data["y"])
        return model
    if name == "Poisson mixed":
        with pm.Model() as model:
            mu, slope, tau = pm.Normal("mu", 0.0, 2.0), pm.Normal("slope", 0.0, 1.0), pm.HalfNormal("tau", 1.0)
            a = pm.Normal("a", 0.0, 1.0, shape=25)
            pm.Poisson("y", pm.math.exp(mu + tau * a[data["group"]] + slope * data["x"]), observed=data["y"])
        return model
    return None


STAN = {
    "Student-t regression": """
data { int N; matrix[N, 4] X; vector[N] y; }
parameters { vector[4] b; real<lower=0> sigma; real<lower=0> nu; }
model { b ~ normal(0, 2); sigma ~ normal(0, 2); nu ~ gamma(2, 0.1); y ~ student_t(nu, X * b, sigma); }
""",
    "AR(2)": """
data { int N; vector[N] y; }
parameters { real c; vector[2] phi; real<lower=0> sigma; }
model {
  c ~ normal(0, 1); phi ~ normal(0, 0.5); sigma ~ normal(0, 1);
  y[3:N] ~ normal(c + phi[1] * y[2:(N - 1)] + phi[2] * y[1:(N - 2)], sigma);
}
""",
}
