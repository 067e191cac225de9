"""Eight schools (Rubin 1981), noncentred: fit, table, picture.

python examples/demo.py --out out/demo
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
from rich.console import Console

import steinmatch as sm

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def log_density(x):
    """x = (mu, log tau, z): mu ~ N(0, 5), tau ~ half-Cauchy(5), z ~ N(0, 1), y ~ N(mu + tau z, sigma)."""
    mu, log_tau, z = x[0], x[1], x[2:]
    tau = jnp.exp(log_tau)
    prior = -0.5 * (mu / 5.0) ** 2 - jnp.log1p((tau / 5.0) ** 2) + log_tau - 0.5 * jnp.sum(z**2)
    return prior - 0.5 * jnp.sum(((EFFECTS - mu - tau * z) / ERRORS) ** 2)


def constrain(x):
    """The model's own parameters."""
    mu, tau = x[0], jnp.exp(x[1])
    return {"mu": mu, "tau": tau, "theta": mu + tau * x[2:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    target = sm.Target(log_density, dim=10, constrain=constrain)
    fit = sm.fit(target, 300, kernel=sm.Whitened(sm.Polynomial(2)))
    console = Console()
    console.print("Eight schools, noncentred: all Stein identities of quadratic features")
    console.print(fit.summary())
    console.print(fit.certificate)
    query = fit.query(lambda x: jnp.where(x[0] + jnp.exp(x[1]) * x[2] > 10.0, 1.0, 0.0))
    console.print(f"One question: P(theta\\[0] > 10) = {query}")
    fit.plot(out / "eight_schools.png", parameters=["mu", "tau", "theta[0]", "theta[1]"])
    console.print(f"The particles in pairs: {out / 'eight_schools.png'}")


if __name__ == "__main__":
    main()
