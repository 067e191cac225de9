"""What abuse gets: a clear sentence, or a result; never a bare error, a hang, or a number that is silently wrong.

python -m benchmarks.faults [--tries N] [--seed K] [campaign ...]        10,000 tries by default

Campaigns: input (bad values to every public function), faults (targets that raise, change shape or turn non-finite),
signals (Ctrl-C at random times), files (bits flipped, cut, edited), disks (no space left), commands (the command line).
A try is bad when it ends in an error that does not come from this library's own checks, in a result that is not finite
or has no reason, or in the file of another fit.
"""

import argparse
import collections
import contextlib
import io
import json
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import steinmatch as sm
from benchmarks.abuse_events import commands, damaged_files, faulty_targets, full_disks, interrupted
from benchmarks.abuse_input import Try, bad_input

CLEAR = (ValueError, TypeError, FileNotFoundError, IsADirectoryError, PermissionError, OSError, RuntimeError, KeyError)
SHARES = {"input": 0.57, "faults": 0.02, "signals": 0.03, "files": 0.31, "disks": 0.04, "commands": 0.03}
CAMPAIGNS: dict[str, Callable[[int, np.random.Generator], Iterator[Try]]] = {
    "input": bad_input, "faults": faulty_targets, "signals": interrupted, "files": damaged_files,
    "disks": full_disks, "commands": commands,
}  # fmt: skip
LONGEST = 20.0  # seconds of one try


def own_sentence(error: BaseException) -> bool:
    """Whether an error was raised by this library's own code, with words."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and "steinmatch" in Path(frames[-1].filename).parts
    return isinstance(error, CLEAR) and len(str(error)) >= 20 and (inside or isinstance(error, OSError))


def fault_of(found: Any) -> str:
    """What is wrong with a result; empty where nothing is."""
    if isinstance(found, sm.Fit):
        if not found.reason:
            return "a fit without a reason"
        if not np.isfinite(found.particles).all() or not np.isfinite(found.weights).all():
            return "particles or weights that are not finite"
        if found.error is not None and np.isnan(np.concatenate(found.error)).any():
            return "an error that is not a number"
        if found.converged and not (
            np.isfinite(found.residual) and (len(found.particles) == 1 or found.sd.min() > 0.0)
        ):
            return "converged without spread or residual"
    if isinstance(found, float | np.floating) and not np.isfinite(found):
        return "a measure that is not finite"
    return ""


class TooLong(BaseException):
    """A try that takes longer than it may."""


def _too_long(*_: Any) -> None:
    raise TooLong("longer than it may take")


def outcome(campaign: str, tried: Callable[[], Any]) -> tuple[str, str]:
    if campaign != "signals":
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        return _outcome(campaign, tried)
    except TooLong:
        return "bad", f"longer than {LONGEST:.0f} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _outcome(campaign: str, tried: Callable[[], Any]) -> tuple[str, str]:
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            found = tried()
    except KeyboardInterrupt:
        return ("clear", "") if campaign in ("signals", "faults") else ("bad", "KeyboardInterrupt")
    except TooLong:
        raise
    except BaseException as error:
        if own_sentence(error):
            return "clear", ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "bad", f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
    fault = fault_of(found)
    return ("bad", fault) if fault else ("fine", "")


def run(tries: int, seed: int, chosen: list[str]) -> dict:
    rng = np.random.default_rng(seed)
    counts: dict[str, collections.Counter] = {}
    total = sum(SHARES[name] for name in chosen)
    bad: list[str] = []
    for name in chosen:
        started, count = time.monotonic(), collections.Counter()
        for words, tried in CAMPAIGNS[name](max(1, round(tries * SHARES[name] / total)), rng):
            word, why = outcome(name, tried)
            count[word] += 1
            if word == "bad":
                bad.append(f"{name}: {words}: {why}")
                print(bad[-1], flush=True)
        counts[name] = count
        print(
            f"{name:9s} tried {count.total():6,}  fine {count['fine']:6,}  clear sentence {count['clear']:6,}  "
            f"bad {count['bad']:4,}  {time.monotonic() - started:.0f} s", flush=True,
        )  # fmt: skip
    return {"tried": sum(c.total() for c in counts.values()), "bad": len(bad), "list": bad}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("campaigns", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = run(options.tries, options.seed, options.campaigns or list(CAMPAIGNS))
    print(json.dumps(found) if options.json else f"tried {found['tried']:,}, bad {found['bad']:,}")


if __name__ == "__main__":
    main()
