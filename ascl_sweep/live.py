"""What a sweep shows while it runs: a picture on a terminal, else a line for each event."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ascl_sweep.labels import arm, duration, percent
from ascl_sweep.ledger import Driver, RunRow
from ascl_sweep.spec import SweepSpec

SPARKS = "▁▂▃▄▅▆▇█"
DRAW_SECONDS = 0.25  # between two pictures
AROUND = 4  # lines of a picture that are not runs, and one for the cursor's
MARKS = {
    "done": "[green]done[/]",
    "stopped": "[yellow]stopped[/]",
    "diverged": "[red]diverged[/]",
    "failed": "[bold red]failed[/]",
    "planned": "[cyan]put off[/]",
}


def spark(values: Sequence[float], width: int = 16) -> str:
    """A curve as small bars; of a long one, its end."""
    values = values[-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


@dataclass
class Line:
    """A run that trains now."""

    row: RunRow
    curve: Sequence[float]


class Display:
    """Told by the driver what happens; draws it on a terminal, or writes it down."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._running: dict[str, Line] = {}
        self._counts: Counter[str] = Counter()
        self._best: RunRow | None = None
        self._spec: SweepSpec | None = None
        self._arms: dict[str, str] = {}
        self._planned = 0
        self._progress = 0, 0, 1
        self._start = time.monotonic(), 0  # when, and how many epochs there were
        self._drawn = 0.0

    # ------------------------------------------------------------ what the driver tells

    def waiting(self, driver: Driver) -> None:
        self.note(f"waiting for the driver with process id {driver.pid} on {driver.host} to end")

    def note(self, text: str) -> None:
        self._say(escape(text))

    def sweep(self, spec: SweepSpec, planned: int, at_once: int) -> None:
        """A sweep begins."""
        self._spec, self._planned = spec, planned
        self._arms.clear()
        self._counts.clear()
        self._best = None
        self._start = time.monotonic(), -1
        scale = ", laptop scale" if spec.scale == "laptop" else ""
        self._say(
            f"sweep [bold]{escape(spec.name)}[/]: {planned} runs{scale}, up to {at_once} at once"
        )
        if self._console.is_terminal and self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, screen=False
            )
            self._live.start()

    def started(self, row: RunRow, values: Mapping[str, Any], curve: Sequence[float]) -> None:
        """A run begins; `values` are what its sweep varies."""
        phase = " (search)" if row.phase == "search" else ""
        self._arms[row.run_id] = f"{arm(values)}, seed {row.config['seed']}{phase}"
        self._running[row.run_id] = Line(row, curve)
        again = f", going on after epoch {row.epochs}" if row.epochs else ""
        if self._live is None:
            self._say(f"start {row.run_id} {escape(self._arm(row))}{again}")
        self._draw()

    def epoch(self, row: RunRow, curve: Sequence[float]) -> None:
        self._running[row.run_id] = Line(row, curve)
        self._draw()

    def lost(self, row: RunRow, why: str) -> None:
        """A run was lost, and will be started again."""
        self._running.pop(row.run_id, None)
        self._say(f"[yellow]lost[/] {row.run_id} {escape(self._arm(row))}: {escape(why)}")
        self._draw()

    def ended(self, row: RunRow, tail: Sequence[str]) -> None:
        self._running.pop(row.run_id, None)
        self._counts[row.state] += 1
        if row.state == "done" and row.knn_last_top1 is not None:
            best = self._best.knn_last_top1 if self._best else None
            if best is None or row.knn_last_top1 > best:
                self._best = row
        text = f"{MARKS[row.state]} {row.run_id} {escape(self._arm(row))}: "
        if row.state == "stopped":
            text += escape(row.stopped_because or "")
        elif row.state in ("failed", "diverged"):
            text += escape(row.error or "no reason known")
        else:
            text += f"kNN {percent(row.knn_last_top1)} after {row.epochs} epochs"
            if row.probe_top1 is not None:
                text += f", linear probe {percent(row.probe_top1)}"
            text += f", {duration(row.train_seconds + row.eval_seconds)}"
        self._say(text)
        if tail and row.log:
            self._say(f"  its output is in {escape(row.log)}")
            for line in tail:
                self._say(f"  [dim]│ {escape(line)}[/]")
        self._draw()

    def tick(self, done: int, left: int, at_once: int) -> None:
        """Time has passed: epochs done and to come, and how many runs may train at once."""
        self._progress = done, left, at_once
        if self._start[1] < 0:
            self._start = self._start[0], done
        self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # ------------------------------------------------------------ drawing

    def _arm(self, row: RunRow) -> str:
        return self._arms.get(row.run_id, "")

    def _say(self, text: str) -> None:
        """An event: above the picture, or on a line of its own with the time."""
        if self._live is not None:
            self._live.console.print(Text.from_markup(text), soft_wrap=True)
        else:
            self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}")

    def _draw(self) -> None:
        """Not at every event: of many runs there are many a second, and time passes by ticks."""
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
        """The state of things."""
        done, left, at_once = self._progress
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
        # What the screen has no room for would be laid out and then cut off.
        lines = max(1, self._console.height - AROUND)
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
        more = [Text(f"… and {cut} more", style="dim")] if cut > 0 else []
        counts = [f"{n} {state}" for state, n in sorted(self._counts.items())]
        foot = [f"{len(self._running)} of {at_once} places in use", *counts]
        if self._best is not None:
            foot.append(f"best kNN {percent(self._best.knn_last_top1)} ({self._arm(self._best)})")
        return Group(head, table, *more, Text("  ".join(foot), style="dim"))
