"""The velocity of random cosines in fused kernels for GPUs, in single precision: features never leave the chip.

Both sums of V = Phi diag(c) G,   G_l = sum_i w_i [phi_l(x_i) s_i + grad phi_l(x_i)],   are of the form

    out_i = sum_j cos(2 pi (a_i . b_j + p_i + q_j)) v_j

over tiles of rows i and columns j: first with features as rows and particles as columns, then the other way round. The
features are computed twice, which takes less time than to store them. Angles are in turns, so that what matters of them
is the fraction; sums of products are as in `fused`: numbers split in two halves, three products of four. Relative error
below 1e-4 (tested against double precision).

On a CPU the kernels are interpreted, for tests; use the plain form there.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from steinmatch.kernels.fused import COLUMNS, MOST, ROWS, TILES, halves, split

_PROGRAMS = 512  # at least, where there is work for as many: all processors of a GPU, several times
_GROUP = COLUMNS * TILES
# sin(pi r) / r and cos(pi r) as polynomials of r^2 for |r| <= 1/2, by least squares at Chebyshev's points: to 1e-8.
_AT = 0.5 * np.cos(np.pi * (np.arange(200) + 0.5) / 400)
_SINE, _COSINE = (
    np.linalg.lstsq(_AT[:, None] ** (2 * np.arange(7)), value, rcond=None)[0].astype(np.float32).tolist()
    for value in (np.sin(np.pi * _AT) / _AT, np.cos(np.pi * _AT))
)


def _polynomial(coefficients: list[float], square: Array) -> Array:
    value = jnp.full_like(square, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * square + np.float32(coefficient)
    return value


def _kernel(
    a1: Any,
    a2: Any,
    p: Any,
    b1: Any,
    b2: Any,
    q: Any,
    v1: Any,
    v2: Any,
    w: Any,
    out: Any,
    sines: Any = None,
    *,
    groups: int,
) -> None:
    """One block of rows and a stretch of the columns; of sines the sums with weights w, where they are asked for."""
    rows1, rows2, own = a1[...], a2[...], p[...]
    begun = pl.program_id(1) * groups

    def tile(j: Any, total: tuple) -> tuple:
        some = pl.ds(j * COLUMNS, COLUMNS)
        columns1, columns2 = b1[some, :], b2[some, :]
        turns = triton.dot(rows1, columns1.T) + triton.dot(rows2, columns1.T) + triton.dot(rows1, columns2.T)
        turns = turns + own[:, None] + q[some][None, :]
        rest = turns - jnp.floor(turns + 0.5)
        square = rest * rest
        half = rest * _polynomial(_SINE, square)  # sin(pi r); cos(2 pi r) = 1 - 2 sin^2(pi r)
        k1, k2 = halves(1.0 - 2.0 * half * half)
        values1, values2 = v1[some, :], v2[some, :]
        found = total[0] + triton.dot(k1, values1) + triton.dot(k1, values2) + triton.dot(k2, values1)
        if sines is None:
            return (found,)
        waves = 2.0 * half * _polynomial(_COSINE, square)
        return found, total[1] + jnp.sum(waves * w[some][None, :], axis=1)

    shapes = [out.shape[1:]] + ([] if sines is None else [sines.shape[1:]])
    zero = tuple(jnp.zeros(shape, jnp.float32) for shape in shapes)

    def group(i: Any, total: tuple) -> tuple:
        some = jax.lax.fori_loop((begun + i) * TILES, (begun + i + 1) * TILES, tile, zero)
        return tuple(x + y for x, y in zip(total, some, strict=True))

    total = jax.lax.fori_loop(0, groups, group, zero)
    out[0, ...] = total[0]
    if sines is not None:
        sines[0, ...] = total[1]


def _sum(
    a: Float[Array, "r e"],
    p: Float[Array, " r"],
    b: Float[Array, "c e"],
    q: Float[Array, " c"],
    v: Float[Array, "c k"],
    w: Float[Array, " c"] | None,
    interpret: bool,
) -> tuple[Array, Array | None]:
    """sum_j cos(2 pi (a_i . b_j + p_i + q_j)) v_j and, if weights w are given, sum_j w_j sin(...)."""
    (n_rows, _), (n_columns, k) = a.shape, v.shape
    wide = max(16, 1 << (max(a.shape[1], k) - 1).bit_length())
    rows = -(-n_rows // ROWS)
    groups = -(-n_columns // _GROUP)
    stretches = min(max(1, -(-_PROGRAMS // rows)), groups)
    each = -(-groups // stretches)
    long = each * stretches * _GROUP

    weights = jnp.zeros(n_columns, jnp.float32) if w is None else w

    def padded(x: Array, length: int) -> Array:
        return jnp.pad(x, [(0, length - x.shape[0])] + ([(0, wide - x.shape[1])] if x.ndim == 2 else []))

    size = jnp.maximum(jnp.max(jnp.abs(v), axis=0), 1e-30)
    a1, a2 = split(padded(a, rows * ROWS))
    b1, b2 = split(padded(b, long))
    v1, v2 = split(padded(v / size[None, :], long))
    mine, line = pl.BlockSpec((ROWS, wide), lambda i, j: (i, 0)), pl.BlockSpec((ROWS,), lambda i, j: (i,))
    whole, whole_line = pl.BlockSpec((long, wide), lambda i, j: (0, 0)), pl.BlockSpec((long,), lambda i, j: (0,))
    shapes = [jax.ShapeDtypeStruct((stretches, rows * ROWS, wide), jnp.float32)]
    specs = [pl.BlockSpec((1, ROWS, wide), lambda i, j: (j, i, 0))]
    if w is not None:
        shapes.append(jax.ShapeDtypeStruct((stretches, rows * ROWS), jnp.float32))
        specs.append(pl.BlockSpec((1, ROWS), lambda i, j: (j, i)))
    found = pl.pallas_call(
        functools.partial(_kernel, groups=each),
        grid=(rows, stretches),
        in_specs=[mine, mine, line, whole, whole, whole_line, whole, whole, whole_line],
        out_specs=specs,
        out_shape=shapes,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=8, num_stages=2),
    )(
        a1,
        a2,
        padded(p, rows * ROWS),
        b1,
        b2,
        padded(q, long),
        v1,
        v2,
        padded(weights, long),
    )
    product = jnp.sum(found[0], axis=0)[:n_rows, :k] * size[None, :]
    return product, None if w is None else jnp.sum(found[1], axis=0)[:n_rows]


@functools.partial(jax.jit, static_argnames="interpret")
def waves_velocity(
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
    frequencies: Float[Array, "m d"],
    phases: Float[Array, " m"],
    bandwidth: Float[Array, ""],
    interpret: bool = False,
) -> Float[Array, "n d"]:
    """The velocity of (1/m) sum_l phi_l(x) phi_l(y), phi_l(x) = sqrt(2) cos(w_l . x / h + b_l), in single precision."""
    x, s, w, f, b = (jnp.asarray(a, jnp.float32) for a in (particles, scores, weights, frequencies, phases))
    n, m = len(x), len(f)
    turn = np.float32(2.0 * np.pi)
    centre = jnp.mean(x, axis=0)
    h = jnp.asarray(bandwidth, jnp.float32)
    u = jnp.clip((x - centre[None, :]) / (turn * h), -MOST, MOST)
    shift = b / turn + jnp.dot(f, centre / (turn * h), precision="highest")
    shift = shift - jnp.floor(shift)
    none = jnp.zeros(n, jnp.float32)
    cosines, sines = _sum(f, shift, u, none, n * w[:, None] * s, n * w, interpret)
    assert sines is not None
    residual = (cosines - sines[:, None] * f / h) * np.float32(np.sqrt(2.0)) / n
    product, _ = _sum(u, none, f, shift, residual * np.float32(np.sqrt(2.0) / m), None, interpret)
    return product
