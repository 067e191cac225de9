"""The RBF velocity in one fused kernel for GPUs, in single precision: tiles of the kernel matrix never leave the chip.

With u = x sqrt(log2 e) / h the kernel is 2^(u_i . u_j - |u_i|^2 / 2 - |u_j|^2 / 2), and the velocity

    v(x_i) = sum_j k_ij w_j (s_j - x_j / h^2) + x_i / h^2 sum_j k_ij w_j

is one product of the kernel matrix with d + 1 columns, as attention is. The tensor cores multiply half precision; so
numbers are split in two, a = a' + a'' with 11 bits each, and of the four products of two such numbers the three that
matter are summed, or two of them where there are many particles. A particle's own term, w_i s_i, is added apart: in the
sum it would swamp the others. Relative error below 1e-4 (tested against double precision).

On a CPU the kernel is interpreted, for tests; use the blocked form there.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

ROWS, COLUMNS = 128, 64  # of a tile of the kernel matrix
TILES = 16  # that are summed by the tensor cores, which cut off what does not fit; sums of these are rounded
MANY = 50_000  # particles: from here on two products do, whose errors average out over so many
_UP = 4096.0  # factor of kernel values, whose half precision would else lose those below 6e-5
MOST = 3e4  # coordinates beyond are cut: their kernel values are zero all the same


def halves(a: Float[Array, "n d"]) -> tuple[Array, Array]:
    """a = first + second, in half precision, within a kernel."""
    first = a.astype(jnp.float16)
    return first, (a - first.astype(jnp.float32)).astype(jnp.float16)


def split(a: Float[Array, "n d"]) -> tuple[Array, Array]:
    """The same outside of kernels, where XLA would take a conversion there and back for nothing."""
    first = jax.lax.reduce_precision(a, exponent_bits=5, mantissa_bits=10)
    return first.astype(jnp.float16), (a - first).astype(jnp.float16)


def _kernel(
    u1: Any, u2: Any, rows: Any, y1: Any, y2: Any, columns: Any, v1: Any, v2: Any, out: Any, *, thorough: bool
) -> None:
    """One block of rows: all columns, tile by tile."""
    a1, a2, own = u1[...], u2[...], rows[...]
    first = pl.program_id(0) * ROWS + jnp.arange(ROWS, dtype=jnp.int32)

    def tile(j: Any, total: Array) -> Array:
        some = pl.ds(j * COLUMNS, COLUMNS)
        b1, b2 = y1[some, :], y2[some, :]
        exponent = triton.dot(a1, b1.T) + triton.dot(a2, b1.T)
        exponent = exponent + triton.dot(a1, b2.T) if thorough else exponent
        k = jnp.exp2(exponent - own[:, None] - columns[some][None, :]) * _UP
        itself = (
            first[:, None]
            == (jnp.int32(COLUMNS) * jnp.asarray(j, jnp.int32) + jnp.arange(COLUMNS, dtype=jnp.int32))[None, :]
        )
        k1, k2 = halves(jnp.where(itself, 0.0, k))
        b1, b2 = v1[some, :], v2[some, :]
        total = total + triton.dot(k1, b1) + triton.dot(k1, b2)
        return total + triton.dot(k2, b1) if thorough else total

    zero = jnp.zeros(out.shape, jnp.float32)

    def group(i: Any, total: Array) -> Array:
        return total + jax.lax.fori_loop(i * TILES, (i + 1) * TILES, tile, zero)

    out[...] = jax.lax.fori_loop(0, y1.shape[0] // (COLUMNS * TILES), group, zero)


@functools.partial(jax.jit, static_argnames="interpret")
def rbf_velocity(
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    weights: Float[Array, " n"],
    bandwidth: Float[Array, ""],
    interpret: bool = False,
) -> Float[Array, "n d"]:
    """The velocity of RBF(bandwidth) at the particles, in single precision."""
    n, d = particles.shape
    x, s, w = (jnp.asarray(a, jnp.float32) for a in (particles, scores, weights))
    rate = 1.0 / jnp.asarray(bandwidth, jnp.float32) ** 2
    x = x - jnp.mean(x, axis=0)[None, :]
    u = x * jnp.sqrt(rate * np.float32(np.log2(np.e)))
    halves = 0.5 * jnp.sum(u * u, axis=1)
    values = jnp.concatenate([n * w[:, None] * (s - rate * x), n * w[:, None]], axis=1)
    size = jnp.maximum(jnp.max(jnp.abs(values), axis=0), 1e-30)
    wide = max(16, 1 << int(d).bit_length())  # a power of two above d: room for the column of weights
    long = -(-n // (COLUMNS * TILES)) * COLUMNS * TILES

    def padded(a: Array, fill: float = 0.0) -> Array:
        widths = [(0, long - n)] + ([(0, wide - a.shape[1])] if a.ndim == 2 else [])
        return jnp.pad(a, widths, constant_values=fill)

    u1, u2 = split(padded(jnp.clip(u, -MOST, MOST)))
    v1, v2 = split(padded(values / size[None, :]))
    norms = padded(halves, 1e9)  # points that fill up have kernel values of zero
    mine = pl.BlockSpec((ROWS, wide), lambda i: (i, 0))
    whole, line = pl.BlockSpec((long, wide), lambda i: (0, 0)), pl.BlockSpec((long,), lambda i: (0,))
    product = pl.pallas_call(
        functools.partial(_kernel, thorough=n < MANY),
        grid=(long // ROWS,),
        in_specs=[mine, mine, pl.BlockSpec((ROWS,), lambda i: (i,)), whole, whole, line, whole, whole],
        out_specs=mine,
        out_shape=jax.ShapeDtypeStruct((long, wide), jnp.float32),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=8, num_stages=2),
    )(u1, u2, norms, u1, u2, norms, v1, v2)
    product = product[:n, : d + 1] * (size / (_UP * n))[None, :]
    return product[:, :-1] + rate * product[:, -1:] * x + w[:, None] * s
