"""Draws as CmdStan writes and reads them: CSV with comments, columns `lp__`, `theta.1`, `m.2.3`, counted from one."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float


def read_cmdstan(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """Variables by name, (chains, n, *shape) each, one file a chain; CmdStan's own columns (`lp__`, ...) left out."""
    chains = [_columns(path) for path in paths]
    names = chains[0][0]
    if any(found[0] != names for found in chains):
        raise ValueError("CmdStan files of one run have the same columns; these differ.")
    n = min(len(found[1]) for found in chains)
    values = np.stack([found[1][:n] for found in chains])
    indices: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for column, name in enumerate(names):
        base, *index = name.split(".")
        if not base.endswith("__"):
            indices.setdefault(base, []).append((tuple(int(i) - 1 for i in index), column))
    drawn = {}
    for base, entries in indices.items():
        shape = tuple(np.max([index for index, _ in entries], axis=0) + 1) if entries[0][0] else ()
        drawn[base] = np.empty((*values.shape[:2], *shape))
        for index, column in entries:
            drawn[base][(..., *index)] = values[:, :, column]
    return drawn


def is_cmdstan(path: Path) -> bool:
    """Whether a CSV file names columns in CmdStan's way: `lp__` is among them."""
    with path.open() as file:
        first = next((line for line in file if not line.startswith("#")), "")
    return "lp__" in first.strip().split(",")


def _columns(path: Path) -> tuple[list[str], Float[np.ndarray, "n k"]]:
    whole = path.read_text().splitlines()
    lines = [line for line in whole if line and not line.startswith("#")]
    if len(lines) < 2:
        raise ValueError(f"{path} has no draws.")
    names = lines[0].split(",")
    try:
        values = np.loadtxt(io.StringIO("\n".join(lines[1:])), delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as CmdStan's CSV: {error}") from error
    if values.shape[1] != len(names):
        raise ValueError(f"{path} has {len(names)} names for {values.shape[1]} columns.")
    return names, values[_warmup(whole) :]


def _warmup(lines: list[str]) -> int:
    """How many rows are of a warm-up that was saved: the comments have the settings of the run."""
    found = {}
    for line in lines:
        name, is_setting, value = line.lstrip("# ").partition("=")
        if line.startswith("#") and is_setting and value.split():
            found.setdefault(name.strip(), value.split()[0])
    if found.get("save_warmup", "0") not in ("1", "true"):
        return 0
    return -(-int(found.get("num_warmup", 1000)) // int(found.get("thin", 1)))


def as_cmdstan(values: Mapping[str, np.ndarray], log_densities: Float[np.ndarray, " n"], comment: str) -> str:
    """The text of a file: draws of equal weight, the first index running fastest, as Stan has it."""
    names, columns = ["lp__"], [log_densities[:, None]]
    for name, value in values.items():
        shape = value.shape[1:]
        for index in np.ndindex(shape[::-1]):
            own = index[::-1]
            names.append(".".join([name, *(str(i + 1) for i in own)]))
            columns.append(value[(slice(None), *own)][:, None])
    rows = io.StringIO()
    np.savetxt(rows, np.concatenate(columns, axis=1), delimiter=",", fmt="%.9g")
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + ",".join(names) + "\n" + rows.getvalue()
