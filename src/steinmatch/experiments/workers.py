"""Cells on several processes, one core each: a sweep of small solves gains little from more threads in one."""

import concurrent.futures
import contextlib
import functools
import importlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from steinmatch.experiments.methods import Settings
from steinmatch.experiments.store import Cell, Store

# Read by XLA, OpenMP and OpenBLAS when a process loads them.
_ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_CELLS_BEFORE_CLEARING = 40  # compiled code of hundreds of cells exhausts the memory maps of a process

_finished = 0  # cells of this process


def compute_cell(store: Store, cell: Cell) -> None:
    """One cell, written when it is done."""
    global _finished
    store.write(cell, cell.compute())
    _finished += 1
    if _finished % _CELLS_BEFORE_CLEARING == 0:
        jax.clear_caches()


def compute_in_processes(
    work: Sequence[tuple[str, int]], settings: Settings, out: Path, jobs: int
) -> Iterator[tuple[str, int]]:
    """Cells given by experiment and place, computed in so many processes; each is told when it is done."""
    with _environment(_ONE_THREAD):
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(min(jobs, len(work)), mp_context=context)
        try:
            running = {pool.submit(_compute, name, place, settings, out): (name, place) for name, place in work}
            for future in concurrent.futures.as_completed(running):
                future.result()
                yield running[future]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _compute(name: str, place: int, settings: Settings, out: Path) -> None:
    compute_cell(Store(out / "cells" / name), _cells(name, settings)[place])


@functools.cache
def _cells(name: str, settings: Settings) -> list[Cell]:
    return importlib.import_module(f"steinmatch.experiments.{name}").EXPERIMENT.cells(settings)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
