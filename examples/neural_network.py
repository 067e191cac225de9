"""A Bayesian neural network on scikit-learn's diabetes data: predictions with their spread, by annealed SVGD."""

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

import steinmatch as sm

UNITS, NOISE = 5, 0.7
data = load_diabetes()
X = StandardScaler().fit_transform(data.data)
Y = (data.target - data.target.mean()) / data.target.std()
TRAIN = np.arange(len(Y)) % 4 != 0
SHAPES = ((10, UNITS), (UNITS,), (UNITS,), ())
SIZES = [int(np.prod(shape)) for shape in SHAPES]


def network(w, x):
    """A hidden layer of tanh units."""
    ends = np.cumsum(SIZES)
    hidden, bias, out, shift = (w[e - s : e].reshape(h) for e, s, h in zip(ends, SIZES, SHAPES, strict=True))
    return jnp.tanh(x @ hidden + bias) @ out + shift


def log_density(w):
    """Normal noise and a standard normal prior."""
    misfit = (jnp.asarray(Y[TRAIN]) - network(w, jnp.asarray(X[TRAIN]))) / NOISE
    return -0.5 * jnp.sum(misfit**2) - 0.5 * jnp.sum(w**2)


target = sm.Target(log_density, dim=sum(SIZES))


def fit_network(n_particles=50, n_steps=500):
    """Hidden units can be swapped, so the posterior has many modes: descent, which spreads over them, is the tool."""
    return sm.fit(target, n_particles, kernel=sm.RBF(), solver=sm.Descent(n_steps=n_steps))


if __name__ == "__main__":
    fit = fit_network()
    predictions = fit.predict(lambda w: network(w, jnp.asarray(X[~TRAIN])))
    rmse = np.sqrt(np.mean((predictions.mean(axis=0) - Y[~TRAIN]) ** 2))
    print(f"{fit!r}\nroot mean square error on the test rows: {rmse:.3f} (the mean of y alone: {Y[~TRAIN].std():.3f})")
