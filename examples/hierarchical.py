"""Thirty groups with few data each, centred: a funnel, which NUTS finds hard.

steinmatch fit examples/hierarchical.py

As a script it fits the model, draws from it by NUTS, and sharpens those draws:

python examples/hierarchical.py --out out/hierarchical
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import steinmatch as sm

GROUPS = 30
RNG = np.random.default_rng(1)
SIGMA = RNG.uniform(5.0, 15.0, size=GROUPS)
Y = 3.0 + 4.0 * RNG.normal(size=GROUPS) + SIGMA * RNG.normal(size=GROUPS)


def model(sigma=SIGMA, y=Y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("group", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/hierarchical"))
    out = parser.parse_args().out
    target = sm.from_numpyro(model)
    fit = sm.fit(target)
    print(fit.summary(["mu", "tau"]))

    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0))
    beside = sm.compare(fit, mcmc)
    found = beside.draws
    print(
        f"1000 draws of NUTS: the largest standard error of a mean or sd is {found.before.error.largest:.2g}; with "
        f"Stein weights {found.after.error.largest:.2g}; that of the fit is {fit.error.largest:.2g}."
    )
    beside.report(out / "report.html", title="Thirty groups", call="sm.compare(sm.fit(target), mcmc)")
    fit.save(out / "fit.nc")
    fit.plot(out / "particles.png")


if __name__ == "__main__":
    main()
