"""Cells on several processes, one core each: a sweep of small solves gains little from more threads in one."""

import collections
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
    """Cells given by experiment and place, computed in so many processes; each is told when it is done.

    Neighbours share compiled code, so each process has a stretch of the cells, and helps at the end of the longest one
    left when its own is done.
    """
    jobs = min(jobs, len(work))
    stretches = [collections.deque(work[i * len(work) // jobs : (i + 1) * len(work) // jobs]) for i in range(jobs)]
    running: dict[concurrent.futures.Future, tuple[int, tuple[str, int]]] = {}
    with _environment(_ONE_THREAD), contextlib.ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        pools = [concurrent.futures.ProcessPoolExecutor(1, mp_context=context) for _ in range(jobs)]
        for pool in pools:
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)

        def start(i: int) -> None:
            longest = max(stretches, key=len)
            if longest:
                cell = stretches[i].popleft() if stretches[i] else longest.pop()
                running[pools[i].submit(_compute, *cell, settings, out)] = i, cell

        for i in range(jobs):
            start(i)
        while running:
            finished, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                i, cell = running.pop(future)
                future.result()
                start(i)
                yield cell


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
