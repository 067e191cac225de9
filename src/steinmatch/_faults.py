"""What ends a solve from within: a user's function that fails, or a budget that is spent.

Functions that are called on the host from compiled code raise there; XLA hands on a text with its own traceback. So the
error is kept here, and raised in its place by whoever waits for the result.
"""

import contextlib
import threading
import time
from collections.abc import Iterator


class TargetError(ValueError):
    """A function of the user's raised, or returned something of the wrong shape; the message says where."""


class BudgetSpent(Exception):
    """Time or gradients are used up in the midst of a step."""

    def __init__(self, n_gradients: int):
        super().__init__("the budget was spent in the midst of a step")
        self.n_gradients = n_gradients


_LOCK = threading.Lock()
_DEADLINES: list[float] = []
_KEPT: list[BaseException] = []


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """Functions that are called on the host refuse after this time, so that compiled loops of them end."""
    _DEADLINES.append(deadline)
    try:
        yield
    finally:
        _DEADLINES.remove(deadline)


def check_time() -> None:
    """BudgetSpent, kept, when the time of all solves is up."""
    if _DEADLINES and time.monotonic() > max(_DEADLINES):
        raise keep(BudgetSpent(0))


def keep(error: BaseException) -> BaseException:
    """Remember an error that is about to be raised in compiled code."""
    with _LOCK:
        _KEPT[:] = [error]
    return error


def cause_of(error: BaseException) -> BaseException:
    """What an error of XLA stands for: the error of the user's function, if that is what it was."""
    if "allback" not in str(error):
        return error
    with _LOCK:
        return _KEPT.pop() if _KEPT else error
