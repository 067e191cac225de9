"""One registry of kernels that all face the same laws, and independent NumPy definitions to compare with."""

import jax
import jax.numpy as jnp
import numpy as np

import steinmatch as sm

D, N = 3, 17
KEY = jax.random.key(7)
TARGET = sm.targets.Gaussian([0.3, -0.2, 0.5], [[1.0, 0.3, 0.0], [0.3, 1.5, -0.2], [0.0, -0.2, 0.8]])
PARTICLES = np.asarray(jax.random.normal(jax.random.key(1), (N, D), jnp.float64)) * np.array([1.0, 1.3, 0.7]) + 0.2


def user_features(x):
    return jnp.stack([jnp.sin(x[0]), x[1] * x[2], jnp.exp(-0.1 * jnp.sum(x**2))])


def user_kernel(x, y):
    return jnp.exp(-0.3 * jnp.sum((x - y) ** 2)) * (1.0 + jnp.sum(x * y)) ** 2


KERNELS = {
    "linear": sm.Linear(),
    "polynomial1": sm.Polynomial(1),
    "polynomial3": sm.Polynomial(3),
    "random fourier": sm.RandomFourier(8),
    "random fourier, fixed": sm.RandomFourier(5, bandwidth=0.8),
    "linear+random": sm.LinearRandom(),
    "user features": sm.FeatureKernel(user_features),
    "features sum": 0.5 * sm.Linear() + 2.0 * sm.FeatureKernel(user_features),
    "rbf": sm.RBF(),
    "rbf, fixed": sm.RBF(bandwidth=1.7),
    "imq": sm.IMQ(),
    "imq, steep": sm.IMQ(bandwidth=0.9, exponent=0.8),
    "matern 3/2": sm.Matern(1.5),
    "matern 5/2": sm.Matern(2.5),
    "matern 7/2": sm.Matern(3.5, bandwidth=1.3),
    "user kernel": sm.PairKernel(user_kernel),
    "mixture": 0.5 * sm.RBF() + sm.Linear() + 0.1 * sm.Matern(2.5),
    "whitened features": sm.Whitened(sm.Polynomial(2)),
    "whitened rbf": sm.Whitened(sm.RBF()),
}


def held(name: str, particles=PARTICLES):
    return KERNELS[name].bind(KEY, jnp.asarray(particles)).hold(jnp.asarray(particles))


# Independent definitions in NumPy: kernels by their textbook formulas, derivatives by complex steps.


def numpy_median_bandwidth(x):
    n = len(x)
    squares = [np.sum((x[i] - x[j]) ** 2) for i in range(n) for j in range(i)]
    return np.sqrt(np.median(squares) / (2 * np.log(n + 1)))


def _square(x, y):
    return np.sum((x - y) ** 2)  # no absolute values, so that complex steps pass through


def numpy_rbf(h):
    return lambda x, y: np.exp(-_square(x, y) / (2 * h**2))


def numpy_imq(h, exponent=0.5):
    return lambda x, y: (1 + _square(x, y) / h**2) ** -exponent


def numpy_matern(nu, h):
    def kernel(x, y):
        u = np.sqrt(2 * nu * _square(x, y) / h**2 + 0j)
        u = u if u.real >= 0 else -u
        polynomial = {1.5: 1 + u, 2.5: 1 + u + u**2 / 3, 3.5: 1 + u + 2 * u**2 / 5 + u**3 / 15}[nu]
        return polynomial * np.exp(-u)

    return kernel


def numpy_hermite(x, degree):
    table = {0: 1.0 + 0 * x, 1: x, 2: (x**2 - 1) / np.sqrt(2), 3: (x**3 - 3 * x) / np.sqrt(6)}
    return [
        np.prod([table[a][j] for j, a in enumerate(powers)])
        for powers in np.ndindex(*[degree + 1] * len(x))
        if sum(powers) <= degree
    ]


def numpy_features(phi, weights=None):
    def kernel(x, y):
        a, b = np.array(phi(x)), np.array(phi(y))
        return np.sum((1.0 if weights is None else weights) * a * b)

    return kernel


def numpy_user_features(x):
    return [np.sin(x[0]), x[1] * x[2], np.exp(-0.1 * np.sum(x**2))]


def numpy_kernel(name, particles=PARTICLES):
    """The kernel of the registry, by its formula; random parameters are read off the library's bound kernel."""
    h = numpy_median_bandwidth(particles)
    d = particles.shape[1]

    def cosines(kernel, h):
        w, b = np.asarray(kernel.frequencies), np.asarray(kernel.phases)
        return lambda x: np.sqrt(2) * np.cos(w @ x / h + b)

    bound = KERNELS[name].bind(KEY, jnp.asarray(particles))
    match name:
        case "linear" | "polynomial1":
            return lambda x, y: 1 + np.sum(x * y)
        case "polynomial3":
            return numpy_features(lambda x: numpy_hermite(x, 3))
        case "random fourier":
            return numpy_features(cosines(bound, h), 1 / 8)
        case "random fourier, fixed":
            return numpy_features(cosines(bound, 0.8), 1 / 5)
        case "linear+random":
            random = numpy_features(cosines(bound.terms[1], h), 1 / (len(particles) - d - 1))
            return lambda x, y: (1 + np.sum(x * y)) / (d + 1) + random(x, y)
        case "user features":
            return numpy_features(numpy_user_features)
        case "features sum":
            user = numpy_features(numpy_user_features)
            return lambda x, y: 0.5 * (1 + np.sum(x * y)) + 2 * user(x, y)
        case "rbf":
            return numpy_rbf(h)
        case "rbf, fixed":
            return numpy_rbf(1.7)
        case "imq":
            return numpy_imq(h)
        case "imq, steep":
            return numpy_imq(0.9, 0.8)
        case "matern 3/2":
            return numpy_matern(1.5, h)
        case "matern 5/2":
            return numpy_matern(2.5, h)
        case "matern 7/2":
            return numpy_matern(3.5, 1.3)
        case "user kernel":
            return lambda x, y: np.exp(-0.3 * _square(x, y)) * (1 + np.sum(x * y)) ** 2
        case "mixture":
            rbf, matern = numpy_rbf(h), numpy_matern(2.5, h)
            return lambda x, y: 0.5 * rbf(x, y) + 1 + np.sum(x * y) + 0.1 * matern(x, y)
        case "whitened features" | "whitened rbf":
            mean = particles.mean(0)
            inverse = np.linalg.inv(np.linalg.cholesky(np.cov(particles.T, ddof=0)))
            z = (particles - mean) @ inverse.T
            inner = (
                numpy_rbf(numpy_median_bandwidth(z))
                if name == "whitened rbf"
                else numpy_features(lambda x: numpy_hermite(x, 2))
            )
            return lambda x, y: inner(inverse @ (x - mean), inverse @ (y - mean))
    raise KeyError(name)


def numpy_velocity(kernel, particles, scores, weights=None):
    """v(x_i) = sum_j w_j [s_j k(x_j, x_i) + grad_{x_j} k(x_j, x_i)]: a double loop, gradients by complex steps."""
    n, d = particles.shape
    weights = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    result = np.zeros((n, d))
    for i in range(n):
        for j in range(n):
            gradient = np.zeros(d)
            for c in range(d):
                step = np.zeros(d, complex)
                step[c] = 1e-30j
                gradient[c] = np.imag(kernel(particles[j] + step, particles[i])) / 1e-30
            value = np.real(kernel(particles[j].astype(complex), particles[i].astype(complex)))
            result[i] += weights[j] * (scores[j] * value + gradient)
    return result
