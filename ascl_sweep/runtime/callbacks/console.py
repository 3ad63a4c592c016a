"""Console progress: a live display on a terminal, otherwise one line per event."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ascl.metrics import EpochMetrics
from ascl_sweep.analysis.labels import system_arm
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.spec.sweep import SweepSpec
from ascl_sweep.text import duration, percent, plural, printable

SPARKS = "▁▂▃▄▅▆▇█"
DRAW_SECONDS = 0.25  # minimum time between two updates of the live display
OTHER_LINES = 4  # lines of the live display that are not runs, and the cursor's line
MARKS = {
    RunState.DONE: "[green]done[/]",
    RunState.STOPPED: "[yellow]stopped[/]",
    RunState.DIVERGED: "[red]diverged[/]",
    RunState.FAILED: "[bold red]failed[/]",
    RunState.PLANNED: "[cyan]interrupted[/]",
}


def spark(values: Sequence[float], width: int = 16) -> str:
    """Draw the last values of a curve as a sparkline."""
    values = values[-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    height = high - low or 1.0
    return "".join(SPARKS[round((value - low) / height * (len(SPARKS) - 1))] for value in values)


def _plain(text: str) -> str:
    """Escape text that may quote a log, so that it controls neither the markup nor the terminal."""
    return escape(printable(text))


@dataclass
class Line:
    """Line of the live display: a running run."""

    row: RunRow
    curve: Sequence[float]


class ConsoleCallback(Callback):
    """Shows a sweep's progress on a terminal, or prints one line per event if there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._running: dict[str, Line] = {}
        self._counts: Counter[RunState] = Counter()
        self._best: RunRow | None = None
        self._spec: SweepSpec | None = None
        self._arms: dict[str, str] = {}
        self._planned = 0
        self._progress = 0, 0, 1
        self._start = time.monotonic(), 0  # start time, and the epochs finished before
        self._drawn = 0.0

    # ------------------------------------------------------------ events

    def on_note(self, text: str) -> None:
        self._print(_plain(text))

    def on_sweep_start(self, spec: SweepSpec, planned: int, slots: int) -> None:
        self._spec, self._planned = spec, planned
        self._arms.clear()
        self._counts.clear()
        self._best = None
        self._start = time.monotonic(), -1
        scale = ", laptop scale" if spec.scale == "laptop" else ""
        most = "at most " if spec.looks else ""
        self._print(
            f"sweep [bold]{_plain(spec.name)}[/]: {most}{plural(planned, 'run')}{scale}, "
            f"up to {slots} at once"
        )
        if self._console.is_terminal and self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, screen=False
            )
            self._live.start()

    def on_run_start(
        self, sweep: str, row: RunRow, varied: Mapping[str, Scalar], curve: Sequence[float]
    ) -> None:
        phase = f" ({row.phase})" if self._spec is not None and self._spec.is_search else ""
        arm = system_arm(row.config, list(varied))
        self._arms[row.run_id] = f"{arm}, seed {row.config['seed']}{phase}"
        self._running[row.run_id] = Line(row, curve)
        resuming = f", resuming after epoch {row.epochs}" if row.epochs else ""
        if self._live is None:
            self._print(f"start {row.run_id} {_plain(self._arm(row))}{resuming}")
        self._draw()

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        self._running[row.run_id] = Line(row, curve)
        self._draw()

    def on_run_lost(self, row: RunRow, reason: str) -> None:
        self._running.pop(row.run_id, None)
        self._print(f"[yellow]lost[/] {row.run_id} {_plain(self._arm(row))}: {_plain(reason)}")
        self._draw()

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        self._running.pop(row.run_id, None)
        self._counts[row.state] += 1
        if row.state == RunState.DONE and row.knn_last_top1 is not None:
            best = self._best.knn_last_top1 if self._best else None
            if best is None or row.knn_last_top1 > best:
                self._best = row
        text = f"{MARKS[row.state]} {row.run_id} {_plain(self._arm(row))}: "
        if row.state == RunState.STOPPED:
            text += _plain(row.stopped_because or "")
        elif row.state in (RunState.FAILED, RunState.DIVERGED):
            text += _plain(row.error or "unknown error")
        else:
            text += f"kNN {percent(row.knn_last_top1)} after {plural(row.epochs, 'epoch')}"
            if row.probe_top1 is not None:
                text += f", linear probe {percent(row.probe_top1)}"
            text += f", {duration(row.train_seconds + row.eval_seconds)}"
        self._print(text)
        if log_tail and row.log:
            self._print(f"  log: {_plain(row.log)}")
            for line in log_tail:
                self._print(f"  [dim]│ {_plain(line)}[/]")
        self._draw()

    def on_progress(self, epochs_done: int, epochs_left: int, slots: int) -> None:
        self._progress = epochs_done, epochs_left, slots
        if self._start[1] < 0:
            self._start = self._start[0], epochs_done
        self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # ------------------------------------------------------------ drawing

    def _arm(self, row: RunRow) -> str:
        return self._arms.get(row.run_id, "")

    def _print(self, text: str) -> None:
        """Print an event above the live display, or on a line with the time."""
        if self._live is not None:
            self._live.console.print(Text.from_markup(text), soft_wrap=True)
        else:
            self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}")

    def _draw(self) -> None:
        """Update the live display, at most every DRAW_SECONDS: many runs cause many events."""
        now = time.monotonic()
        if self._live is not None and now - self._drawn > DRAW_SECONDS:
            self._drawn = now
            self._live.update(self.picture(), refresh=True)

    def time_left(self) -> float | None:
        done, left, _ = self._progress
        started, before = self._start
        if before < 0 or done <= before:
            return None
        return (time.monotonic() - started) / (done - before) * left

    def picture(self) -> RenderableType:
        """Build the live display: progress, running runs, counts of finished runs."""
        done, left, slots = self._progress
        head = Table.grid(padding=(0, 2))
        name = self._spec.name if self._spec else ""
        left_text = duration(self.time_left())
        head.add_row(
            Text(name, style="bold"),
            ProgressBar(total=max(1, done + left), completed=done, width=30),
            f"{done}/{done + left} epochs",
            f"{sum(self._counts.values())}/{self._planned} runs",
            f"{left_text} left" if left_text != "–" else "",
        )
        table = Table.grid(padding=(0, 2))
        # Lines beyond the screen would be laid out and then cut off.
        lines = max(1, self._console.height - OTHER_LINES)
        for line in islice(self._running.values(), lines):
            row = line.row
            table.add_row(
                Text(row.run_id, style="cyan"),
                Text(self._arm(row)),
                f"epoch {row.epochs}/{row.config['epochs']}",
                f"kNN {percent(row.knn_last_top1)}",
                Text(spark(line.curve), style="green"),
            )
        cut = len(self._running) - lines
        more = [Text(f"… and {cut} more running", style="dim")] if cut > 0 else []
        counts = [f"{n} {state}" for state, n in sorted(self._counts.items())]
        foot = [f"{len(self._running)} of {slots} slots in use", *counts]
        if self._best is not None:
            foot.append(f"best kNN {percent(self._best.knn_last_top1)} ({self._arm(self._best)})")
        return Group(head, table, *more, Text("  ".join(foot), style="dim"))
