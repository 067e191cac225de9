"""Stein images of draws: functions psi with E psi = 0 under the target, of which weights and control variates are made.

Every vector field g has an image psi = P . g = s . g + div g. The fields here, of the point z of a frame:

    constant     g = e_i:                psi = s_i                                 d of them
    linear       g = z_i e_j:            psi = z_i s_j + [i = j]                   d^2, the linear kernel's equations
    cubic        g = grad of a product of three coordinates (Hermite):             d (d + 1) (d + 2) / 6
    own          g = grad He_k(v), v a standardised constrained value:             one for each value and degree k

The own fields of a value know its scale: with v = exp(z) under an inverse gamma law those of degree 1 and 2 give its
mean and variance exactly, though the fourth moment, which the error of a plain average would need, is infinite.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from steinmatch._linalg import hermite, namespace
from steinmatch._types import Numbers, Vector
from steinmatch.coordinates import PulledBack
from steinmatch.coordinates.plainly import derivatives, placed, rows
from steinmatch.targets.compiled import compiled

OWN_DEGREE = 4
_DIFFERENCE = 1e-3  # of second differences, for values that JAX cannot differentiate: accurate to about 1e-6
_MOST_WORK = 2 * 10**10  # products of images, of one verdict: about a second on two cores
_MOST_SOLVED = 5 * 10**11  # ... where weights are solved for, and nothing else: some ten seconds
_MOST_NUMBERS = 10**8  # of them: 800 MB
_BLOCK_ENTRIES = 2**21  # of the derivatives of a frame at draws: 16 MiB
_LEAST_BLOCK = 16  # draws
_MANY = 64  # dimensions, from which on values of one coordinate each are looked for
DRAWS_AN_EQUATION = 5  # at least: with fewer, weights that solve the equations of finite samples are far from uniform


@dataclasses.dataclass(frozen=True)
class Values:
    """Constrained values v_j of draws, and what their Stein images are made of."""

    value: Float[Numbers, "n k"]
    along: Float[Numbers, "n k"]  # grad v . s
    square: Float[Numbers, "n k"]  # |grad v|^2
    laplacian: Float[Numbers, "n k"]

    @staticmethod
    def joined(parts: "list[Values]") -> "Values":
        return Values(*(np.concatenate(found) for found in zip(*(vars(part).values() for part in parts), strict=True)))


@compiled
def _values_at(
    constrain: Callable,
    x: Float[Array, "n d"],
    jacobians: Float[Array, "n d d"],
    laplacians: Float[Array, "n d"],
    scores: Float[Array, "n d"],
) -> tuple[Array, ...]:
    """Point after point: batches of batches of LAPACK calls, as in constrained values of a Gaussian process, can make
    XLA wait for itself for ever (see `targets.evaluations`).
    """
    return jax.lax.map(lambda point: value_terms(constrain, *point), (x, jacobians, laplacians, scores))


def value_terms(
    constrain: Callable | None, x: Vector, jacobian: Float[Array, "d d"], laplacian: Vector, score: Vector
) -> tuple[Array, ...]:
    """Value, grad v . s, |grad v|^2 and Laplacian of v(T(z)), from the derivatives of T: along column i of T',
    grad_z v . e_i = dv(T' e_i) and, less the part that is linear in v, d^2 v / dz_i^2 = d^2 v(T' e_i, T' e_i); then
    dv(Laplacian of T).
    """
    own = _itself if constrain is None else constrain
    flat = _flat(own)

    def exact(x: Vector, e: Vector) -> tuple:
        return jax.jvp(lambda y: jax.jvp(flat, (y,), (e,))[1], (x,), (e,))

    def differences(x: Vector, e: Vector) -> tuple:
        ahead, here, behind = (flat(x + h * e) for h in (_DIFFERENCE, 0.0, -_DIFFERENCE))
        return (ahead - behind) / (2.0 * _DIFFERENCE), (ahead - 2.0 * here + behind) / _DIFFERENCE**2

    along = exact if _differentiable(own, x.shape[0]) else differences
    gradient, second = jax.vmap(along, in_axes=(None, 1))(x, jacobian)  # (d, k) each
    linear = along(x, laplacian)[0]
    return flat(x), score @ gradient, jnp.sum(gradient**2, axis=0), jnp.sum(second, axis=0) + linear


def _itself(x: Vector) -> Vector:
    return x


def _differentiable(constrain: Callable, dim: int) -> bool:
    """Whether JAX can differentiate the constrained values; not those of a Stan program."""
    point = jax.ShapeDtypeStruct((dim,), jnp.float64)
    try:
        jax.eval_shape(lambda x: jax.jvp(lambda y: jax.tree.leaves(constrain(y)), (x,), (x,))[1], point)
    except Exception:  # whatever a user's function raises here means: no derivative
        return False
    return True


def values_at(
    target: PulledBack, z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"], size: int | None = None
) -> Values:
    """The constrained values of draws z whose pulled-back scores are known; filled up to `size` for compiled code, or
    in blocks of one size where the derivatives of a frame at all draws would be too large.
    """
    n, d = z.shape
    if d >= _MANY:
        single = _one_by_one(target, z, scores, size or n)
        if single is not None:
            return single
    block = max(1 << (_BLOCK_ENTRIES // d**2).bit_length() - 1, _LEAST_BLOCK)
    if n > block or (size or n) > block:
        starts = range(0, n, block)
        return Values.joined([_values_of(target, z[i : i + block], scores[i : i + block], block) for i in starts])
    return _values_of(target, z, scores, max(size or n, n))


def _values_of(target: PulledBack, z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"], size: int) -> Values:
    n, d = z.shape
    constrain = target.target.constrain or _itself
    filled, given = (np.resize(part, (size, d)) for part in (z, scores))
    x = placed(target.frame, filled).x
    jacobians, laplacians = derivatives(target.frame, filled)
    found = _values_at(constrain, x, np.ascontiguousarray(jacobians), laplacians, given)
    return Values(*(np.asarray(part)[:n] for part in found))


def _one_by_one(
    target: PulledBack, z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"], size: int
) -> Values | None:
    """The values where each depends on one coordinate of x alone, as most models' do: then the derivatives of single
    coordinates are all that there is to know, and no value is differentiated along every coordinate of z.
    """
    n, d = z.shape
    constrain = target.target.constrain
    x, found = placed(target.frame, z).x, rows(target.frame, z, scores)
    if constrain is None:
        return Values(x, found.along, np.array(found.squares), found.laplacian)
    if not _differentiable(constrain, d):
        return None
    depends = np.any(np.asarray(_jacobians(constrain, np.stack([x[0], x[n // 2], x[-1]]))) != 0.0, axis=0)
    if np.any(depends.sum(axis=1) > 1):
        return None
    single = depends.argmax(axis=1)
    value, first, second = (np.asarray(part)[:n] for part in _alone(constrain, np.resize(x, (size, d))))
    squares = found.squares[:, single]
    laplacian = second * squares + first * found.laplacian[:, single]
    return Values(value, first * found.along[:, single], first**2 * squares, laplacian)


def _flat(constrain: Callable) -> Callable[[Vector], Float[Array, " k"]]:
    return lambda x: jnp.concatenate(
        [jnp.ravel(jnp.asarray(leaf, jnp.float64)) for leaf in jax.tree.leaves(constrain(x))]
    )


@compiled
def _jacobians(constrain: Callable, x: Float[Array, "n d"]) -> Float[Array, "n k d"]:
    return jax.lax.map(jax.jacfwd(_flat(constrain)), x)


@compiled
def _alone(constrain: Callable, x: Float[Array, "n d"]) -> tuple[Array, ...]:
    """Values, first and second derivatives of functions of one coordinate each."""

    def one(x: Vector) -> tuple[Array, ...]:
        along, flat = jnp.ones_like(x), _flat(constrain)
        value, (first, second) = flat(x), jax.jvp(lambda y: jax.jvp(flat, (y,), (along,))[1], (x,), (along,))
        return value, first, second

    return jax.lax.map(one, x)


def own_images(
    values: Values, mean: Float[Numbers, " k"], sd: Float[Numbers, " k"], degree: int
) -> Float[Numbers, "n k"]:
    """psi of grad He_degree((v - mean) / sd): h'(v) (laplacian + grad v . s) + h''(v) |grad v|^2."""
    polynomials = hermite((values.value - mean) / sd, degree)
    first = (values.laplacian + values.along) / sd
    found = np.sqrt(degree) * polynomials[degree - 1] * first
    if degree > 1:
        found = found + np.sqrt(degree * (degree - 1.0)) * polynomials[degree - 2] * values.square / sd**2
    return found


def linear_images(z: Float[Numbers, "n d"], scores: Float[Numbers, "n d"]) -> Float[Numbers, "n dd"]:
    """psi of z_i e_j for all i, j."""
    n, d = z.shape
    return (z[:, :, None] * scores[:, None, :] + np.eye(d)[None]).reshape(n, d * d)


def cubic_images(z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
    """psi of the gradients of all products of three coordinates, in Hermite polynomials."""
    z, scores = np.ascontiguousarray(z.T), np.ascontiguousarray(scores.T)  # row after row is several times faster
    d = len(z)
    basis = hermite(z, 3)
    # E_k = psi of the gradient of He_k(z_i) alone; a product's image is the sum over its factors.
    alone = [np.zeros_like(z), scores]
    alone += [np.sqrt(k * (k - 1.0)) * basis[k - 2] + np.sqrt(k) * scores * basis[k - 1] for k in (2, 3)]
    found = np.empty((d * (d + 1) * (d + 2) // 6, z.shape[1]))
    found[:d] = alone[3]
    row = d
    for i in range(d):
        others = np.delete(np.arange(d), i)
        found[row : row + d - 1] = alone[2][i] * z[others] + basis[2][i] * scores[others]
        row += d - 1
    for i, j in itertools.combinations(range(d), 2):
        upto = row + d - 1 - j
        found[row:upto] = (scores[i] * z[j] + scores[j] * z[i]) * z[j + 1 :] + z[i] * z[j] * scores[j + 1 :]
        row = upto
    return found.T


@dataclasses.dataclass(frozen=True)
class Family:
    """A set of fields, and how many equations they are. Larger families contain smaller ones."""

    name: str
    linear: bool
    cubic: bool
    own: int  # degrees of the own fields
    single: bool = False  # no constant fields, and each value by its own fields alone

    @property
    def grows(self) -> bool:
        """Whether some of its images grow faster than first and second moments."""
        return self.cubic or self.own > 2

    def size(self, d: int, k: int) -> int:
        return int(self.columns(d, k).sum())

    def columns(self, d: int, k: int) -> Bool[np.ndarray, " m"]:
        """Which images of `all_images` belong to this family."""
        chosen = (not self.single, *(degree < self.own for degree in range(OWN_DEGREE)), self.linear, self.cubic)
        return np.repeat(chosen, _sizes(d, k))


def all_images(
    family: Family,
    z: Float[Numbers, "n d"],
    scores: Float[Numbers, "n d"],
    values: Values,
    mean: Float[Numbers, " k"],
    sd: Float[Numbers, " k"],
) -> Float[Numbers, "n m"]:
    """psi of the fields of all families up to this one. Those of a value's own fields span the same functions whatever
    the mean and sd that it is standardised by.
    """
    own = OWN_DEGREE if family.linear or family.cubic else family.own
    parts = [scores, *(own_images(values, mean, sd, degree) for degree in range(1, own + 1))]
    if family.linear:
        parts.append(linear_images(z, scores))
    if family.cubic:
        parts.append(cubic_images(z, scores))
    return namespace(scores).concatenate(parts, axis=1)


FAMILIES = (
    Family("constant fields", False, False, 0),
    Family("constant fields and own ones of degree 2", False, False, 2),
    Family("constant fields and own ones of degree 4", False, False, 4),
    Family("linear fields and own ones of degree 2", True, False, 2),
    Family("linear fields and own ones of degree 4", True, False, 4),
    Family("cubic fields and own ones of degree 4", True, True, 4),
)
# For so many values that regressions on the fields of all take too long: then each on its own two.
SINGLE = Family("own fields of degree 2", False, False, 2, single=True)

HEAVY = 0.25  # relative variance of a mean square, kurtosis over n, that is too large to know it by


def too_heavy(psi: Float[np.ndarray, "n m"], d: int, k: int) -> Bool[np.ndarray, " m"]:
    """Which images are not to be used: those that grow faster than the moments asked for, and whose few largest values
    make up their mean square. Where large values are rare, typical averages of v^4 are below their expectation, zero,
    by more than they tell; a control variate with v^4 in it takes that over to the mean of v^2.
    """
    grows = growing(d, k)[: psi.shape[1]]
    squares = psi[:, grows] ** 2
    with np.errstate(all="ignore"):
        kurtosis = np.mean(squares**2, axis=0) / np.mean(squares, axis=0) ** 2
    found = np.zeros(psi.shape[1], bool)
    found[grows] = ~(kurtosis <= HEAVY * len(psi))
    return found


def growing(d: int, k: int) -> Bool[np.ndarray, " m"]:
    """Which images grow faster than first and second moments."""
    return np.repeat((False, False, False, True, True, False, True), _sizes(d, k))


def _sizes(d: int, k: int) -> tuple[int, ...]:
    """How many images there are: constant, own of each degree, linear, cubic."""
    return (d, *[k] * OWN_DEGREE, d * d, d * (d + 1) * (d + 2) // 6)


def next_affordable(n: int, d: int, k: int) -> float:
    """The number of draws, above n, from which on one more family can be borne; infinity where there is none."""
    families = [family for family in (*FAMILIES, SINGLE) if _bearable(family, d, k)]
    return min((float(m) for m in (_least(family, d, k) for family in families) if m > n), default=np.inf)


def affordable(n: int, d: int, k: int) -> list[Family]:
    """The families whose equations n draws can bear."""
    found = [family for family in (*FAMILIES, SINGLE) if _least(family, d, k) <= n and _bearable(family, d, k, n)]
    return [family for family in found if not (found[-1].single and family.own and not family.single)]


def _least(family: Family, d: int, k: int) -> int:
    return DRAWS_AN_EQUATION * family.size(d, k)


def _bearable(family: Family, d: int, k: int, n: int | None = None) -> bool:
    """Whether equations are not too much work for n draws, by default for as few as they need. Single fields are for
    where those of all values are, however few the draws.
    """
    size, least = family.size(d, k), _least(family, d, k)
    if not family.single:
        return max(n or 0, least) * size**2 <= _MOST_WORK
    n = n or least
    return n * size**2 <= _MOST_SOLVED and n * size <= _MOST_NUMBERS and not _bearable(FAMILIES[1], d, k)
