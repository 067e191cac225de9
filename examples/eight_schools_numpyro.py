"""Eight schools as a NumPyro model. `steinmatch fit examples/eight_schools_numpyro.py`."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import steinmatch as sm

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def model(y=EFFECTS, sigma=ERRORS):
    """Noncentred: theta = mu + tau eta."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * eta)
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


if __name__ == "__main__":
    fit = sm.fit(sm.from_numpyro(model))
    print(fit.summary())
