"""Results on their way to the store, buffered while the store is unreachable."""

import contextlib
import time
from collections.abc import Callable

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow
from ascl_sweep.store.retry import LONGEST_PAUSE, PATIENCE, retry
from ascl_sweep.store.store import Store, Writer

FLUSH_SECONDS = 1.0


class Outbox:
    """Rows to write and work folders to delete, until the store has them."""

    def __init__(self, store: Store, writer: Writer, note: Callable[[str], None]) -> None:
        """Start with nothing to send; `note` receives messages for the user."""
        self._store, self._writer, self._note = store, writer, note
        self._to_delete: list[str] = []
        self._flushed = time.monotonic()
        self._unreachable_since: float | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether the store is unreachable."""
        return self._unreachable_since is not None

    def put_run(self, row: RunRow) -> None:
        self._writer.put_run(row)

    def put_epoch(self, run_id: str, metrics: EpochMetrics) -> None:
        self._writer.put_epoch(run_id, metrics)

    def delete_work(self, run_id: str) -> None:
        """Delete a work folder after the next flush."""
        self._to_delete.append(run_id)

    def keep_work(self, run_id: str) -> None:
        """Keep the work folder of a stopped run that starts again, for example as an audit."""
        if run_id in self._to_delete:
            self._to_delete.remove(run_id)

    def is_due(self, now: float) -> bool:
        """Whether to flush now. A request to an unreachable store blocks for seconds."""
        return now - self._flushed >= (LONGEST_PAUSE if self.is_blocked else FLUSH_SECONDS)

    def flush(self) -> str | None:
        """Write pending rows, then delete work folders.

        Returns:
            Why the results cannot be saved, once waiting no longer helps; else None.
        """
        self._flushed = time.monotonic()
        try:
            self._writer.flush()
        except OSError as error:
            return self._on_error(error)
        self._on_success()
        return None

    def flush_last(self, *, wait: bool) -> None:
        """Write pending rows, as `flush`, but raise OSError if the store cannot be written.

        Args:
            wait: Whether to retry while a remote store is unreachable.
        """
        if wait:
            retry(
                self._writer.flush,
                may_recover=self._store.may_recover,
                on_wait=lambda error: self._note(
                    f"store unreachable ({self._describe(error)}); waiting for the store"
                ),
            )
        else:
            self._writer.flush()
        self._on_success()

    def _on_success(self) -> None:
        if self.is_blocked:
            self._note(f"store {self._store.address} is back; all results are saved")
            self._unreachable_since = None
        # Deletion may fail while the workers of a stopped run still write; the next flush retries.
        self._to_delete = [run_id for run_id in self._to_delete if not self._deleted(run_id)]

    def _on_error(self, error: OSError) -> str | None:
        where = self._describe(error)
        self._flushed = now = time.monotonic()  # the request may have blocked for long
        if self._store.may_recover(error) and self._unreachable_since is None:
            self._unreachable_since = now
            self._note(
                f"store unreachable ({where}); training continues, results are buffered until "
                "the store is back"
            )
        over = self._unreachable_since is None or now - self._unreachable_since > PATIENCE
        return where if over else None

    def _describe(self, error: OSError) -> str:
        return f"{error.filename or self._store.address}: {error.strerror or error}"

    def _deleted(self, run_id: str) -> bool:
        with contextlib.suppress(OSError):
            self._store.delete_work(run_id)
            return True
        return False
