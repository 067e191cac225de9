"""Eight schools (Rubin 1981), noncentred, as a dict of named parameters. `steinmatch fit examples/eight_schools.py`."""

import jax.numpy as jnp

import steinmatch as sm

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def log_density(p):
    """mu ~ N(0, 5), tau ~ half-Cauchy(5), eta ~ N(0, 1), y ~ N(mu + tau eta, sigma)."""
    prior = -0.5 * (p["mu"] / 5.0) ** 2 - jnp.log1p((p["tau"] / 5.0) ** 2) - 0.5 * jnp.sum(p["eta"] ** 2)
    return prior - 0.5 * jnp.sum(((EFFECTS - p["mu"] - p["tau"] * p["eta"]) / ERRORS) ** 2)


target = sm.Target.from_parameters({"eta": (8,), "mu": (), "tau": sm.positive}, log_density)

if __name__ == "__main__":
    fit = sm.fit(target)
    print(fit.summary())
