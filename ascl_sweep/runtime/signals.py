"""Signals that end the command. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 all have the same effect.

While a sweep runs, the first signal drains it and the second ends the command at once. While Ray
starts, the first signal ends the command once Ray has started. At any other time the first signal
ends the command at once. SIGTERM and SIGUSR1 come from cluster schedulers, SIGHUP from a terminal
that closes.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
CLEANUP_SECONDS = 10.0  # no second KeyboardInterrupt so soon: the first one is still cleaning up


@dataclass
class Interrupts:
    """The signals that were received."""

    count: int = 0
    deferred: bool = False
    """Whether the first signal is only counted."""
    _raised: float = float("-inf")

    def handle(self, signum: int, frame: object) -> None:
        """Handle a signal; raises KeyboardInterrupt to end the command."""
        self.count += 1
        if self.deferred and self.count == 1:
            return
        if time.monotonic() - self._raised > CLEANUP_SECONDS:
            self._raised = time.monotonic()
            raise KeyboardInterrupt

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Only count the first signal; the caller handles it.

        A KeyboardInterrupt at a random point of Ray's start can be lost or leave a lock held.
        """
        self.deferred = True
        try:
            yield
        finally:
            self.deferred = False


_active: Interrupts | None = None


@contextmanager
def handle_signals() -> Iterator[Interrupts]:
    """Handle signals until the context ends. Contexts may be nested; the outermost one counts."""
    global _active
    if threading.current_thread() is not threading.main_thread():  # only it receives signals
        yield Interrupts()
        return
    if _active is not None:
        yield _active
        return
    _active = Interrupts()
    before: dict[int, Callable[..., object] | int | None] = {}
    try:
        for number in SIGNALS:
            # `nohup` ignores SIGHUP.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, _active.handle)
        yield _active
    finally:
        _active = None
        for changed, handler in before.items():
            signal.signal(changed, handler)
