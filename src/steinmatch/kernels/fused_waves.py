"""The velocity of random cosines in fused kernels for GPUs, in single precision: features never leave the chip.

Both sums of V = Phi diag(c) G,   G_l = sum_i w_i [phi_l(x_i) s_i + grad phi_l(x_i)],   are of the form

    out_i = sum_j cos(2 pi (a_i . b_j + p_i)) v_j     or     out_i = sum_j cos(2 pi (a_i . b_j + q_j)) v_j

over tiles of rows i and columns j: first with features as rows and particles as columns, then the other way round. The
features are computed twice, which takes less time than to store them. Angles are in turns, so that what matters of them
is the fraction; sums of products are as in `fused`: numbers split in two halves, three products of four. Relative error
below 1e-4 (tested against double precision).

Measured on an H200 (n = 10^6, m = 1024, d = 100): cosines as polynomials instead of the chip's own took 10.2 ms, not
8.3; correction products in eight bits 10.5; widths of 64 + 32 + 16 instead of 128 9.5; other tiles 8.7 and more.

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

from steinmatch.kernels.fused import COLUMNS, MOST, ROWS, halves, split

_TILES = 8  # that are summed by the tensor cores, which cut off what does not fit; sums of these are rounded
_PROGRAMS = 528  # at least, where there is work for as many: all processors of a GPU, several times
_GROUP = COLUMNS * _TILES
_CENTRE = 4096  # particles whose mean is the origin of the angles
# x less the nearest whole number, by adding and taking away 1.5 * 2^23, times 2 pi; then the chip's own waves, accurate
# to 5e-7. Compilers would take the addition for nothing.
_ANGLE = (
    "{ .reg .f32 a; add.rn.f32 a, $1, 0f4B400000; sub.rn.f32 a, a, 0f4B400000; sub.rn.f32 a, $1, a; "
    "mul.rn.f32 $0, a, 0f40C90FDB; }"
)
_COSINE, _SINE = (f"{name}.approx.ftz.f32 $0, $1;" for name in ("cos", "sin"))


def _by(code: str, x: Array) -> Array:
    shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return triton.elementwise_inline_asm(code, args=[x], constraints="=f,f", pack=1, result_shape_dtypes=[shape])[0]


def _waves(turns: Array, sines: bool, interpret: bool) -> tuple[Array, Array | None]:
    """Cosines and, where they are asked for, sines."""
    if interpret:
        angle = np.float32(2.0 * np.pi) * (turns - jnp.round(turns))
        return jnp.cos(angle), jnp.sin(angle) if sines else None
    angle = _by(_ANGLE, turns)
    return _by(_COSINE, angle), _by(_SINE, angle) if sines else None


def _kernel(
    a1: Any, a2: Any, p: Any, b1: Any, b2: Any, v1: Any, v2: Any, w: Any, *outs: Any, groups: int, interpret: bool
) -> None:
    """One block of rows and a stretch of the columns. With two results p are offsets of the rows, and the second is
    the sum of sines with weights w; with one, p are offsets of the columns.
    """
    by_rows = len(outs) == 2
    rows1, rows2 = a1[...], a2[...]
    own = p[...] if by_rows else None
    begun = pl.program_id(1) * groups

    def tile(j: Any, total: tuple) -> tuple:
        some = pl.ds(j * COLUMNS, COLUMNS)
        columns1, columns2 = b1[some, :], b2[some, :]
        turns = triton.dot(rows1, columns1.T) + triton.dot(rows2, columns1.T) + triton.dot(rows1, columns2.T)
        turns = turns + (p[some][None, :] if own is None else own[:, None])
        cosines, sines = _waves(turns, by_rows, interpret)
        k1, k2 = halves(cosines)
        values1, values2 = v1[some, :], v2[some, :]
        found = total[0] + triton.dot(k1, values1) + triton.dot(k1, values2) + triton.dot(k2, values1)
        return (found,) if sines is None else (found, total[1] + jnp.sum(sines * w[some][None, :], axis=1))

    zero = tuple(jnp.zeros(out.shape[1:], jnp.float32) for out in outs)

    def group(i: Any, total: tuple) -> tuple:
        some = jax.lax.fori_loop((begun + i) * _TILES, (begun + i + 1) * _TILES, tile, zero)
        return tuple(x + y for x, y in zip(total, some, strict=True))

    for out, total in zip(outs, jax.lax.fori_loop(0, groups, group, zero), strict=True):
        out[0, ...] = total


def _filled(x: Array, length: int, wide: int = 0) -> Array:
    return jnp.pad(x, [(0, length - x.shape[0])] + ([(0, wide - x.shape[1])] if x.ndim == 2 else []))


def _stretches(n_rows: int, n_columns: int) -> tuple[int, int]:
    """Of the columns, and how many there are when they are filled up."""
    groups = -(-n_columns // _GROUP)
    stretches = min(max(1, -(-_PROGRAMS // -(-n_rows // ROWS))), groups)
    return stretches, -(-groups // stretches) * stretches * _GROUP


def _sum(
    a: tuple[Array, Array],
    p: Float[Array, " rows"] | Float[Array, " columns"],
    b: tuple[Array, Array],
    v: Float[Array, "columns k"],
    w: Float[Array, " columns"] | None,
    interpret: bool,
) -> list[Array]:
    """sum_j cos(2 pi (a_i . b_j + p_i)) v_j and sum_j w_j sin(...); or, without w, the first with p_j. The parts of a
    and b are filled up already.
    """
    (n_rows, wide), n_columns = a[0].shape, len(b[0])
    stretches = min(max(1, -(-_PROGRAMS // (n_rows // ROWS))), n_columns // _GROUP)
    size = jnp.maximum(jnp.max(jnp.abs(v), axis=0), 1e-30)
    v1, v2 = split(_filled(v / size[None, :], n_columns, wide))
    mine = pl.BlockSpec((ROWS, wide), lambda i, j: (i, 0))
    line = pl.BlockSpec((ROWS,), lambda i, j: (i,))
    whole = pl.BlockSpec((n_columns, wide), lambda i, j: (0, 0))
    whole_line = pl.BlockSpec((n_columns,), lambda i, j: (0,))
    shapes = [jax.ShapeDtypeStruct((stretches, n_rows, wide), jnp.float32)]
    specs = [pl.BlockSpec((1, ROWS, wide), lambda i, j: (j, i, 0))]
    if w is not None:
        shapes.append(jax.ShapeDtypeStruct((stretches, n_rows), jnp.float32))
        specs.append(pl.BlockSpec((1, ROWS), lambda i, j: (j, i)))
    found = pl.pallas_call(
        functools.partial(_kernel, groups=n_columns // _GROUP // stretches, interpret=interpret),
        grid=(n_rows // ROWS, stretches),
        in_specs=[mine, mine, whole_line if w is None else line, whole, whole, whole, whole, whole_line],
        out_specs=specs,
        out_shape=shapes,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=8, num_stages=2),
    )(*a, _filled(p, n_columns if w is None else n_rows), *b, v1, v2, _filled(v[:, 0] if w is None else w, n_columns))
    total, *others = (jnp.sum(part, axis=0) for part in found)
    return [total[:, : v.shape[1]] * size[None, :], *others]


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
    (n, d), m = x.shape, len(f)
    turn, wide = np.float32(2.0 * np.pi), max(16, 1 << (d - 1).bit_length())
    h = jnp.asarray(bandwidth, jnp.float32)
    centre = jnp.mean(x[:: max(1, n // _CENTRE)], axis=0)
    shift = b / turn + jnp.dot(f, centre / (turn * h), precision="highest")
    shift = shift - jnp.floor(shift)
    # The particles are filled up once, for both sums: as columns, whose number is a multiple of that of rows as well.
    _, long = _stretches(m, n)
    _, m_long = _stretches(long, m)
    u = split(_filled(jnp.clip((x - centre[None, :]) / (turn * h), -MOST, MOST), long, wide))
    own = split(_filled(f, -(-m // ROWS) * ROWS, wide))
    cosines, sines = _sum(own, shift, u, n * w[:, None] * s, n * w, interpret)
    residual = (cosines[:m] - sines[:m, None] * f / h) * np.float32(np.sqrt(2.0)) / n
    columns = split(_filled(f, m_long, wide))
    return _sum(u, shift, columns, residual * np.float32(np.sqrt(2.0) / m), None, interpret)[0][:n]
