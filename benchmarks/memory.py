"""How much memory fits of new targets leave behind.

python -m benchmarks.memory [--fits N]        200 by default

Every fit is of a new function, so that all is compiled anew; compiled code of the last few targets is kept.
"""

import argparse
import gc
import resource
from pathlib import Path

import jax.numpy as jnp

import steinmatch as sm


def megabytes() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def new_fit(i: int) -> None:
    sm.fit(sm.Target(lambda x: -0.5 * jnp.sum((x - i) ** 2), dim=2), progress=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, default=200)
    fits = parser.parse_args().fits
    new_fit(0)
    gc.collect()
    first = last = megabytes()
    for i in range(1, fits + 1):
        new_fit(i)
        if i % 20 == 0:
            gc.collect()
            now = megabytes()
            print(f"{i} fits: {now:.0f} MB, {(now - last) / 20:.2f} MB each of the last 20", flush=True)
            last = now
    print(f"over {fits} fits of new targets: {(last - first) / fits:.2f} MB each")


if __name__ == "__main__":
    main()
