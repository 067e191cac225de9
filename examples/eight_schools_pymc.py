"""Eight schools as a PyMC model (needs steinmatch[pymc]). `steinmatch fit examples/eight_schools_pymc.py`."""

import pymc as pm

import steinmatch as sm

SCHOOLS = ["A", "B", "C", "D", "E", "F", "G", "H"]
EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]

with pm.Model(coords={"school": SCHOOLS}) as model:
    mu = pm.Normal("mu", 0.0, 5.0)
    tau = pm.HalfCauchy("tau", 5.0)
    eta = pm.Normal("eta", 0.0, 1.0, dims="school")
    theta = pm.Deterministic("theta", mu + tau * eta, dims="school")
    pm.Normal("obs", theta, ERRORS, observed=EFFECTS, dims="school")

if __name__ == "__main__":
    fit = sm.fit(sm.from_pymc(model))
    print(fit.summary())
