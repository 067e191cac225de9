"""Logistic regression on the breast cancer data of scikit-learn: 30 standardised features, intercept, N(0, 1) prior."""

import jax
import jax.numpy as jnp
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import steinmatch as sm

data = load_breast_cancer()
FEATURES = jnp.concatenate([jnp.ones((len(data.target), 1)), jnp.asarray(StandardScaler().fit_transform(data.data))], 1)
SIGNS = jnp.asarray(2.0 * data.target - 1.0)


def log_density(w):
    """sum_i log sigmoid(y_i w . x_i) - |w|^2 / 2."""
    return jnp.sum(jax.nn.log_sigmoid(SIGNS * (FEATURES @ w))) - 0.5 * jnp.sum(w**2)


target = sm.Target(log_density, dim=31, names=["intercept", *(name.replace(" ", "_") for name in data.feature_names)])

if __name__ == "__main__":
    fit = sm.fit(target)
    print(fit.summary())
