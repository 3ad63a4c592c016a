"""The display: a picture on a terminal, a line for each event elsewhere."""

import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ascl_sweep.agenda import config_values
from ascl_sweep.ledger import RunRow
from ascl_sweep.live import SPARKS, Display, spark
from ascl_sweep.spec import spec_of
from tests.ascl_sweep.test_agenda import GRID

SPEC = spec_of(GRID, file="it.yaml")
VALUES = config_values(SPEC.config({"method.target_temperature": 0.02}, seed=0))
VARIED = {"method.target_temperature": 0.02}
ROW = RunRow(
    "abc", ("it",), VALUES, "final", "full", epochs=3, knn_last_top1=0.25, log="/x/log.txt"
)


def shown(*, terminal: bool, height: int = 25) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=120, height=height, color_system=None
    )
    display = Display(console)
    display.sweep(SPEC, planned=4, at_once=2)
    return display, out


@given(st.lists(st.floats(0, 1), max_size=40))
def test_a_spark_line_rises_where_the_curve_does(values: list[float]) -> None:
    line = spark(values)
    assert len(line) == min(16, len(values))
    if values and max(values[-16:]) > min(values[-16:]):
        assert line[values[-16:].index(max(values[-16:]))] == SPARKS[-1]


def test_without_a_terminal_each_event_is_a_line() -> None:
    display, out = shown(terminal=False)
    display.started(ROW, VARIED, [])
    display.epoch(ROW, [0.2, 0.25])
    display.tick(3, 9, 2)
    display.ended(replace(ROW, state="stopped", stopped_because="ASHA at epoch 3: too low"), [])
    display.ended(replace(ROW, state="failed", error="no disk"), ["last words"])
    lines = out.getvalue().splitlines()
    assert len(lines) == 6
    assert "4 runs, up to 2 at once" in lines[0]
    assert "start abc τ' 0.02, seed 0" in lines[1]
    assert "stopped abc τ' 0.02, seed 0: ASHA at epoch 3: too low" in lines[2]
    assert "failed abc" in lines[3] and "no disk" in lines[3]
    assert "/x/log.txt" in lines[4] and "last words" in lines[5]


def test_on_a_terminal_running_runs_are_drawn() -> None:
    display, _ = shown(terminal=True)
    display.started(ROW, VARIED, [])
    display.epoch(ROW, [0.1, 0.25])
    display.tick(3, 9, 2)
    page = Console(file=io.StringIO(), width=120, color_system=None, record=True)
    page.print(display.picture())
    text = page.export_text()
    display.close()
    assert "epoch 3/9" in text and "kNN 25.0%" in text and "▁█" in text
    assert "3/12 epochs" in text and "1 of 2 places in use" in text


def test_a_picture_has_no_more_runs_than_the_screen_has_lines() -> None:
    display, _ = shown(terminal=True, height=20)
    for number in range(200):
        display.started(replace(ROW, run_id=f"run{number:03d}"), VARIED, [])
    page = Console(file=io.StringIO(), width=120, color_system=None, record=True)
    page.print(display.picture())
    lines = page.export_text().splitlines()
    display.close()
    shown_runs = sum(line.startswith("run") for line in lines)
    assert len(lines) < 20 and 10 < shown_runs < 20
    assert f"… and {200 - shown_runs} more" in lines[-2]
    assert "200 of 1 places in use" in lines[-1]


def test_markup_in_an_error_is_shown_as_it_is() -> None:
    display, out = shown(terminal=False)
    display.started(ROW, VARIED, [])
    display.ended(replace(ROW, state="failed", error="[bold]x[/nonsense]"), ["[/]"])
    assert "[bold]x[/nonsense]" in out.getvalue()


def test_the_time_left_follows_the_epochs() -> None:
    display, _ = shown(terminal=False)
    assert display.time_left() is None
    display.tick(10, 90, 2)
    assert display.time_left() is None
    display.tick(20, 80, 2)
    left = display.time_left()
    assert left is not None and left >= 0
