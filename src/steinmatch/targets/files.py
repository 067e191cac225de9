"""Data beyond memory: rows of Parquet and Arrow files and of memory maps, read a chunk at a time, pass after pass.

    log p(x) = log prior(x) + sum over chunks of the log likelihood of their rows

One pass over the data gives the log densities and scores of all points that are asked for, so that a pass is dear and
points are cheap. What is in memory is one chunk; within it the sum is taken in the smaller chunks of `OnData`. Data
that fit into one chunk are read once, and are arrays from then on.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from steinmatch._faults import check_time
from steinmatch._types import Scalar, Vector, float64
from steinmatch.targets.compiled import compiled
from steinmatch.targets.data import OnData, at_once
from steinmatch.targets.host import on_host

_NUMBERS_READ = 2**24  # of one chunk: 64 or 128 MiB

_BATCH = 2**20  # numbers that are decoded at a time
_A_POINT = 4  # numbers that a row takes for each point: its predictor, its term, their derivatives
_PIECE = 4  # chunks of compiled code that are handed over at a time
_SHARE = 8  # of a chunk: the sample that a fit begins with is in memory three times for a while

Rows = Any  # a tree of arrays (rows, ...)


class Source:
    """Rows that are read in chunks; the same rows in the same order in each pass."""

    rows: int
    numbers: int  # of one row
    passes: int = 0

    def chunks(self, size: int) -> Iterator[Rows]:
        """All rows, at most `size` at a time."""
        raise NotImplementedError

    def whole(self) -> Rows:
        """All rows at once."""
        return _joined(list(self.chunks(self.rows)))

    def some(self, count: int, size: int) -> Rows:
        """About `count` rows, evenly spread over all of them: one pass."""
        step, first, found = max(1, self.rows // count), 0, []
        for chunk in self.chunks(size):
            length = _length(chunk)
            found.append(jax.tree.map(lambda leaf, skip=-first % step: np.array(leaf[skip::step]), chunk))
            first += length
            del chunk  # before what is kept of it is copied once more
        return _joined(found)


class ArrowFiles(Source):
    """Columns of Parquet or Arrow (IPC, Feather) files with the same columns: numbers, or lists of a fixed length."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)
        for path in self.paths:
            if not path.is_file():
                raise FileNotFoundError(f"Target.from_data: {path}: there is no such file.")
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "Target.from_data: Parquet and Arrow files need pyarrow: pip install 'steinmatch[files]'."
            ) from error
        columns = [self._columns(path) for path in self.paths]
        for path, found in zip(self.paths, columns, strict=True):
            if found[0] != columns[0][0]:
                raise ValueError(
                    f"Target.from_data: {path} has the columns {_named(found[0])}; {self.paths[0]} has "
                    f"{_named(columns[0][0])}; all files must have the same."
                )
        self.rows = sum(found[1] for found in columns)
        self.numbers = sum(width for width, _ in columns[0][0].values())
        if not self.rows:
            raise ValueError(f"Target.from_data: {self.paths[0]} has no rows.")

    @staticmethod
    def _columns(path: Path) -> tuple[dict[str, tuple[int, str]], int]:
        """How many numbers each column has a row, and of which type; and the rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if _is_parquet(path):
                with pq.ParquetFile(path) as file:
                    schema, rows = file.schema_arrow, file.metadata.num_rows
            else:
                with pa.memory_map(str(path)) as source:
                    reader = pa.ipc.open_file(source)
                    schema = reader.schema
                    rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        except pa.ArrowInvalid as error:
            raise ValueError(f"Target.from_data: {path} is neither a Parquet nor an Arrow file: {error}.") from error
        widths = {}
        for field in schema:
            listed = pa.types.is_fixed_size_list(field.type)
            kind = field.type.value_type if listed else field.type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                raise ValueError(
                    f"Target.from_data: column {field.name!r} of {path} holds {field.type}; columns must be numbers "
                    "or lists of numbers of one length. Write the file without it, or with codes in its place."
                )
            widths[field.name] = (field.type.list_size if listed else 1, str(kind))
        return widths, rows

    def chunks(self, size: int) -> Iterator[Rows]:
        """One chunk is in memory, and filled anew: what is kept of it must be copied before the next."""
        self.passes += 1
        held, size = 0, min(size, self.rows)
        buffers: dict[str, np.ndarray] = {}
        for batch in self._batches(min(size, max(1, _BATCH // self.numbers))):
            if not buffers:
                buffers = {name: np.empty((size, *part.shape[1:]), part.dtype) for name, part in batch.items()}
            done, length = 0, _length(batch)
            while done < length:
                taken = min(size - held, length - done)
                for name, part in batch.items():
                    buffers[name][held : held + taken] = part[done : done + taken]
                held, done = held + taken, done + taken
                if held == size:
                    yield buffers
                    held = 0
        if held:
            yield {name: part[:held] for name, part in buffers.items()}

    def _batches(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path in self.paths:
            if _is_parquet(path):
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    for batch in file.iter_batches(batch_size=size):
                        yield self._arrays(batch, path)
            else:
                with pa.memory_map(str(path)) as source:
                    reader = pa.ipc.open_file(source)
                    for i in range(reader.num_record_batches):
                        batch = reader.get_batch(i)
                        for row in range(0, batch.num_rows, size):
                            yield self._arrays(batch.slice(row, size), path)

    @staticmethod
    def _arrays(batch: Any, path: Path) -> dict[str, np.ndarray]:
        found = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            flat = column.flatten() if hasattr(column.type, "list_size") else column
            if flat.null_count:
                raise ValueError(f"Target.from_data: column {name!r} of {path} has missing values; leave the rows out.")
            values = flat.to_numpy(zero_copy_only=False)
            found[name] = values.reshape(len(column), -1) if flat is not column else values
        return found


class Mapped(Source):
    """A tree of arrays some of which are memory maps."""

    def __init__(self, data: Rows):
        self.data = data
        leaves = jax.tree.leaves(data)
        self.rows = len(leaves[0])
        self.numbers = sum(leaf.size for leaf in leaves) // max(self.rows, 1)

    def chunks(self, size: int) -> Iterator[Rows]:
        self.passes += 1
        for row in range(0, self.rows, size):
            yield jax.tree.map(lambda leaf, row=row: np.array(leaf[row : row + size]), self.data)


def source_of(data: Any) -> Source | None:
    """The source of paths to files, or of memory maps; None for arrays."""
    if isinstance(data, str | Path):
        return ArrowFiles([Path(data)])
    if isinstance(data, list | tuple) and data and all(isinstance(part, str | Path) for part in data):
        return ArrowFiles([Path(part) for part in data])
    return Mapped(data) if any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data)) else None


def rows_at_once(source: Source, chunk: int | None) -> int:
    """Rows of a chunk that is read."""
    return max(1, _NUMBERS_READ // source.numbers) if chunk is None else chunk


class Streamed(eqx.Module):
    """The log density of a prior and of rows that are read in chunks. `values_and_scores` takes all points in one
    pass; `__call__` is the same for compiled code, which calls it on the host.
    """

    log_prior: Callable
    log_likelihood: Callable
    unflatten: Callable | None = eqx.field(static=True)
    source: Source = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    def values_and_scores(
        self, x: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n d"]]:
        """log p and its gradient at all points, by one pass over the data."""
        inner = at_once(self.source.numbers + _A_POINT * len(x))
        prior = OnData(self.log_prior, self.log_likelihood, None, inner, self.unflatten, self.dtype)
        values, scores = map(np.asarray, _prior_terms(prior, x))
        for rows in self.source.chunks(self.chunk):
            for piece in _pieces(rows, _PIECE * inner):  # JAX copies what it is given
                check_time()
                more = _terms(prior, piece, x)
                values, scores = values + np.asarray(more[0]), scores + np.asarray(more[1])
        gc.collect(0)  # JAX holds NumPy arrays that it was given, and with them a chunk, until then
        return values, scores

    def __call__(self, x: Vector) -> Scalar:
        @jax.custom_vjp
        def value(x: Vector) -> Scalar:
            return _from_host(self, x)[0]

        value.defvjp(lambda x: _from_host(self, x), lambda score, slope: (slope * score,))
        return value(x)

    def on_a_sample(self) -> OnData:
        """The same on a share of a chunk's rows, counted as often as makes up for the others."""
        rows = self.source.some(max(1, self.chunk // _SHARE), self.chunk)
        gc.collect(0)
        held = _length(rows)
        likelihood = _Counted(self.log_likelihood, self.source.rows / held)
        inner = min(at_once(self.source.numbers), held)
        return OnData(self.log_prior, likelihood, jax.tree.map(jnp.asarray, rows), inner, self.unflatten, self.dtype)


class _Counted(eqx.Module):
    function: Callable
    times: float = eqx.field(static=True)

    def __call__(self, params: Any, rows: Rows) -> Any:
        return self.times * self.function(params, rows)


def passes_over(target: Any) -> int | None:
    """How often a target's data have been read; None where they are in memory."""
    density = getattr(target, "log_density", None)
    return density.source.passes if isinstance(density, Streamed) else None


@compiled
def _terms(without: OnData, rows: Rows, x: Any) -> tuple[Array, Array]:
    """Of some rows."""
    size = min(without.chunk, _length(rows))
    part = OnData(without.log_prior, without.log_likelihood, rows, size, without.unflatten, without.dtype)
    return jax.vmap(jax.value_and_grad(part.likelihood))(x)


@eqx.filter_jit
def _prior_terms(density: OnData, x: Any) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(density.prior))(x)


def _from_host(density: Streamed, x: Vector) -> tuple[Array, Array]:
    def call(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        d = points.shape[-1]
        values, scores = float64(density.values_and_scores)(points.reshape(-1, d))
        return values.reshape(points.shape[:-1]), scores.reshape(points.shape)

    value, score = on_host(call, ((), x.shape), x, many=True, name="the pass over the data")
    return value, score


def _named(columns: dict[str, tuple[int, str]]) -> str:
    return ", ".join(f"{name} ({kind}" + (f" x {n})" if n > 1 else ")") for name, (n, kind) in columns.items())


def _length(rows: Rows) -> int:
    return len(jax.tree.leaves(rows)[0])


def _pieces(rows: Rows, size: int) -> Iterator[Rows]:
    for i in range(0, _length(rows), size):
        yield jax.tree.map(lambda leaf, i=i: leaf[i : i + size], rows)


def _joined(parts: list[Rows]) -> Rows:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _is_parquet(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"
