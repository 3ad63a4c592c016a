"""A far store may be away for a while: whoever needs it asks again before giving up."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600.0  # seconds
LONGEST_PAUSE = 15.0
T = TypeVar("T")


def patiently(
    action: Callable[[], T],
    *,
    seconds: float | None = None,
    on_wait: Callable[[OSError], None] = lambda error: None,
) -> T:
    """What an action comes to; it is tried again while it raises OSError, for ten minutes.

    Not where something is not there: that is an answer. `on_wait` is told of the first error.
    """
    end = time.monotonic() + (PATIENCE if seconds is None else seconds)
    pause, told = 0.5, False
    while True:
        try:
            return action()
        except FileNotFoundError:
            raise
        except OSError as error:
            if time.monotonic() + pause > end:
                raise
            if not told:
                on_wait(error)
            told = True
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
