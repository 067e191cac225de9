"""Your own feature map: make E[x_1 x_2] and E[sin x_1] matter, and see that the certificate knows."""

import jax.numpy as jnp

import steinmatch as sm


def log_density(x):
    """A banana."""
    return -0.5 * x[0] ** 2 - 2.0 * (x[1] - 0.5 * x[0] ** 2) ** 2


def phi(x):
    """Features of one point; what becomes exact are the averages of s phi + grad phi."""
    return jnp.array([1.0, x[0], x[1], x[0] ** 2, x[0] * x[1], jnp.cos(x[0])])


target = sm.Target(log_density, dim=2)


def fit_features():
    """100 particles that satisfy the Stein identities of phi."""
    return sm.fit(target, 100, kernel=sm.FeatureKernel(phi))


if __name__ == "__main__":
    fit = fit_features()
    print(fit)
    print(fit.certificate)
