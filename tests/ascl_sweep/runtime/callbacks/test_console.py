"""Console progress: a live display on a terminal, otherwise one line per event."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.runtime.callbacks.console import SPARKS, ConsoleCallback, spark
from ascl_sweep.spec.sweep import parse_sweep
from ascl_sweep.text import printable
from tests.ascl_sweep.search.test_study import GRID, SEARCH

SPEC = parse_sweep(GRID, file="it.yaml")
VALUES = SPEC.config({"method.target_temperature": 0.02}, seed=0).flat_values()
METRICS = EpochMetrics(3, loss=1.0, lr=0.1, knn_top1=0.25)
VARIED = {"method.target_temperature": 0.02}
ROW = RunRow(
    "abc", ("it",), VALUES, "final", "full", epochs=3, knn_last_top1=0.25, log="/x/log.txt"
)


def shown(*, terminal: bool, height: int = 25) -> tuple[ConsoleCallback, io.StringIO]:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=120, height=height, color_system=None
    )
    display = ConsoleCallback(console)
    display.on_sweep_start(SPEC, planned=4, slots=2)
    return display, out


@pytest.mark.parametrize("phase", ["search", "final"])
def test_each_run_of_a_search_is_shown_with_its_phase(phase: str) -> None:
    display, out = shown(terminal=False)
    display.on_sweep_start(parse_sweep(SEARCH, file="it.yaml"), planned=8, slots=2)
    display.on_run_start("it", replace(ROW, phase=phase), VARIED, [])
    assert f"seed 0 ({phase})" in out.getvalue()


def test_a_run_is_named_as_in_reports() -> None:
    display, out = shown(terminal=False)
    for relabel, keys in [("none", []), ("ascl", ["method.target_temperature"])]:
        config = {**VALUES, "method.relabel": relabel}
        varied = {key: config[key] for key in ("method.relabel", *keys)}
        display.on_run_start("it", replace(ROW, config=config), varied, [])
    lines = out.getvalue().splitlines()
    assert "start abc MoCo, seed 0" in lines[1]
    assert "start abc ASCL, τ' = 0.02, seed 0" in lines[2]


@given(st.lists(st.floats(0, 1), max_size=40))
def test_a_spark_line_rises_where_the_curve_does(values: list[float]) -> None:
    line = spark(values)
    assert len(line) == min(16, len(values))
    if values and max(values[-16:]) > min(values[-16:]):
        assert line[values[-16:].index(max(values[-16:]))] == SPARKS[-1]


def test_without_a_terminal_each_event_is_a_line() -> None:
    display, out = shown(terminal=False)
    display.on_run_start("it", ROW, VARIED, [])
    display.on_epoch(ROW, METRICS, [0.2, 0.25])
    display.on_progress(3, 9, 2)
    display.on_run_end(
        replace(ROW, state=RunState.STOPPED, stopped_because="ASHA at epoch 3: too low"), []
    )
    display.on_run_end(replace(ROW, state=RunState.FAILED, error="no disk"), ["last words"])
    lines = out.getvalue().splitlines()
    assert len(lines) == 6
    assert "4 runs, up to 2 at once" in lines[0]
    assert "start abc τ' = 0.02, seed 0, resuming after epoch 3" in lines[1]
    assert "stopped abc τ' = 0.02, seed 0: ASHA at epoch 3: too low" in lines[2]
    assert "failed abc" in lines[3] and "no disk" in lines[3]
    assert "log: /x/log.txt" in lines[4] and "last words" in lines[5]


def test_on_a_terminal_running_runs_are_drawn() -> None:
    display, _ = shown(terminal=True)
    display.on_run_start("it", ROW, VARIED, [])
    display.on_epoch(ROW, METRICS, [0.1, 0.25])
    display.on_progress(3, 9, 2)
    page = Console(file=io.StringIO(), width=120, color_system=None, record=True)
    page.print(display.picture())
    text = page.export_text()
    display.close()
    assert "epoch 3/9" in text and "kNN 25.0%" in text and "▁█" in text
    assert "3/12 epochs" in text and "1 of 2 slots in use" in text


def test_a_picture_has_no_more_runs_than_the_screen_has_lines() -> None:
    display, _ = shown(terminal=True, height=20)
    for number in range(200):
        display.on_run_start("it", replace(ROW, run_id=f"run{number:03d}"), VARIED, [])
    page = Console(file=io.StringIO(), width=120, color_system=None, record=True)
    page.print(display.picture())
    lines = page.export_text().splitlines()
    display.close()
    shown_runs = sum(line.startswith("run") for line in lines)
    assert len(lines) < 20 and 10 < shown_runs < 20
    assert f"… and {200 - shown_runs} more running" in lines[-2]
    assert "200 of 1 slots in use" in lines[-1]


def test_markup_in_an_error_is_shown_as_it_is() -> None:
    display, out = shown(terminal=False)
    display.on_run_start("it", ROW, VARIED, [])
    display.on_run_end(replace(ROW, state=RunState.FAILED, error="[bold]x[/nonsense]"), ["[/]"])
    assert "[bold]x[/nonsense]" in out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_run_wrote_cannot_control_the_terminal(terminal: bool) -> None:
    display, out = shown(terminal=terminal)
    title, clear = "\x1b]0;owned\x07", "\x1b[2J\x9b31m\x08"
    display.on_run_start("it", ROW, VARIED, [])
    display.on_note(f"note{title}")
    display.on_run_lost(ROW, f"lost{clear}")
    failed = replace(ROW, state=RunState.FAILED, error=f"no {clear}disk", log=f"/x{title}/log.txt")
    display.on_run_end(failed, [f"last{title} words{clear}"])
    display.close()
    for part in ("\x1b]0", "owned", "\x1b[2J", "\x9b", "\x08", "\x07"):
        assert part not in out.getvalue()
    for line in ("note", "no disk", "/x/log.txt", "│ last words"):
        assert line in out.getvalue()


@given(st.text(st.sampled_from("\x1b\x9b\\[]/2Jmred0;")))
def test_no_text_is_read_as_markup_once_control_characters_are_dropped(text: str) -> None:
    display, out = shown(terminal=False)
    display.on_run_end(replace(ROW, state=RunState.FAILED, error=f"<{text}>"), [])
    said = out.getvalue().replace("\\", "")  # rich drops some before a bracket
    assert printable(f"<{text}>").replace("\\", "") in said


def test_the_time_left_follows_the_epochs() -> None:
    display, _ = shown(terminal=False)
    assert display.time_left() is None
    display.on_progress(10, 90, 2)
    assert display.time_left() is None
    display.on_progress(20, 80, 2)
    left = display.time_left()
    assert left is not None and left >= 0
