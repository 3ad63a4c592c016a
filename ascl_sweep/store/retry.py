"""Retry with exponential back-off, for remote stores that are temporarily unreachable."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600.0  # seconds
LONGEST_PAUSE = 15.0
T = TypeVar("T")


def retry(
    action: Callable[[], T],
    *,
    seconds: float | None = None,
    on_wait: Callable[[OSError], None] = lambda error: None,
    may_recover: Callable[[OSError], bool] = lambda error: True,
) -> T:
    """Call an action, retry it while it raises OSError, and return its result.

    FileNotFoundError is raised immediately, because it means that the store is reachable.

    Args:
        action: The function to call.
        seconds: How long to retry, PATIENCE (ten minutes) if None; 0 calls the action once.
        on_wait: Called with the first error, before the first pause.
        may_recover: Whether to retry after this error.
    """
    end = time.monotonic() + (PATIENCE if seconds is None else seconds)
    pause, waited = 0.5, False
    while True:
        try:
            return action()
        except FileNotFoundError:
            raise
        except OSError as error:
            if time.monotonic() + pause > end or not may_recover(error):
                raise
            if not waited:
                on_wait(error)
            waited = True
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
