"""Shared by the benchmarks: medians of timed calls, versions, where the reference posteriors are."""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def median_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Median wall time of `call`, warmed up once, results waited for."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def queued_seconds(call: Callable[[], Any], count: int = 10, repeats: int = 5) -> float:
    """Median wall time of one of `count` calls in a row, as the steps of a run are made, the last one waited for."""
    return median_seconds(lambda: [call() for _ in range(count)], repeats) / count


def print_versions(*packages: str) -> None:
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"Python {platform.python_version()}, {versions}; devices {jax.devices()}\n")
