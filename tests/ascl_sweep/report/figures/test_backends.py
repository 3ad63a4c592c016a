"""Backends: the same figure gives the same bytes, and all its text is readable."""

import io
import json
import random
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from PIL import Image
from plotly.graph_objects import Figure as PlotlyFigure

from ascl_sweep.analysis.stats import Interval
from ascl_sweep.report.figures import (
    Diagram,
    Figure,
    Forest,
    ForestRow,
    Heat,
    Label,
    Line,
    Panel,
    Series,
)
from ascl_sweep.report.figures import matplotlib_backend as draw
from ascl_sweep.report.figures import plotly_backend as interactive
from ascl_sweep.report.figures import style as looks
from ascl_sweep.report.figures.matplotlib_backend import png, svg, write_figures
from ascl_sweep.report.figures.plotly_backend import plotly

SVG = "{http://www.w3.org/2000/svg}"


def a_line(label: str, seed: int = 0, **more: object) -> Series:
    values = random.Random(seed)
    y = tuple(values.uniform(10, 90) for _ in range(20))
    low, high = tuple(v - 3 for v in y), tuple(v + 3 for v in y)
    return Series(label, tuple(range(1, 21)), y, low, high, **more)  # type: ignore[arg-type]


ARMS = ("MoCo", "ASCL, τ' = 0.05", "BYOL + ASCL, K = 5, batch = 256, smallest crop = 0.2")
CURVES = Panel(
    "CIFAR-10", "epoch", "online kNN top-1 (%)", tuple(a_line(arm, i) for i, arm in enumerate(ARMS))
)
CLOUD = Series("trials", (0.01, 0.02, 0.5), (50.0, 60.0, 55.0), kind="points", text=("a", "b", "c"))
BARRED = Series("one", (1.5,), (50.0,), (48.0,), (52.0,), "points")
BARE = Series("two", (2.5,), (51.0,), (None,), (None,), "points")
BUNDLE = Series("stopped (2)", (1, 2, 2, 1, 2), (5.0, 6.0, None, 7.0, 8.0), role="behind")
GUIDE = Series("rungs", (1, 1), (0.0, 9.0), role="guide")
CROSSES = Series("stopped here", (2, 2), (6.0, 8.0), kind="points", role="behind")
HEAT = Heat(("0.1", "0.2"), ("1", "2"), ((1.0, None), (2.0, 3.0)), "kNN")
DIAGRAM = Diagram(
    (Line((1, 3), (3, 3)), Line((1, 2), (2, 2), bold=True)),
    (Label(0.9, 1, "BYOL (1.0)", "right"), Label(3.1, 1, "MoCo (3.0)", "left"), Label(1, 4, "1")),
    height=12,
)
FOREST = Forest(
    (
        ForestRow("ASCL, K = 1", 1.5, Interval(0.4, 2.6), "better", "+1.5 [+0.4, +2.6]"),
        ForestRow("Hard, K = 10", -2.0, Interval(-3.0, -1.0), "worse", "−2.0 [−3.0, −1.0]"),
        ForestRow("AHCL", 0.1, Interval(-0.3, 0.4), "equivalent", "+0.1 [−0.3, +0.4]"),
        ForestRow("Hard, K = 1", 0.7, None, "undecided", "+0.7"),
    ),
    region=0.5,
)
FIGURES = (
    Figure("it-curves", "Learning speed", "Three arms, n = 3.", (CURVES, CURVES)),
    Figure(
        "it-parameter", "Effect", "Trials, n = 3.", (Panel("", "τ'", "y", (CLOUD,), log_x=True),)
    ),
    Figure("it-cost", "Cost", "Two arms.", (Panel("", "device-hours", "y", (BARRED, BARE)),)),
    Figure("it-rungs", "Rungs", "Two.", (Panel("", "epoch", "kNN", (GUIDE, BUNDLE, CROSSES)),)),
    Figure("it-heatmap", "Two", "n = 3.", (Panel("", "τ'", "K", heat=HEAT),)),
    Figure("it-ranks", "Ranks", "Three systems.", (Panel(diagram=DIAGRAM),)),
    Figure(
        "tsne", "t-SNE", "n = 3.", (Panel("MoCo", series=(CLOUD,)), Panel("ASCL", series=(CLOUD,)))
    ),
    Figure("it-forest", "Δ", "Four, n = 3.", (Panel("", "Δ (points)", "", forest=FOREST),)),
)
each_figure = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


def words(text: str) -> list[str]:
    """Return all texts of an SVG."""
    return ["".join(node.itertext()) for node in ElementTree.fromstring(text).iter(f"{SVG}text")]


@each_figure
def test_an_svg_is_complete_and_deterministic(figure: Figure) -> None:
    first, second = svg(figure), svg(figure)
    assert ElementTree.fromstring(first).tag == f"{SVG}svg"
    assert first == second
    assert figure.caption in first, "for screen readers"


@each_figure
def test_every_label_can_be_read(figure: Figure) -> None:
    shown = " ".join(words(svg(figure)))
    for panel in figure.panels:
        expected = [panel.title, panel.x_label, panel.y_label]
        expected += [series.label for series in panel.series]
        if panel.heat:
            expected += [*panel.heat.columns, *panel.heat.rows, panel.heat.label, "2.0"]
        if panel.diagram:
            expected += [label.text for label in panel.diagram.labels]
        for text in expected:
            assert " ".join(text.split()) in shown, text


def test_names_are_shown_as_they_are() -> None:
    strange = "a$b$ <c> & {d}_e ^f"
    panel = Panel("", "x", "y", (a_line(strange),))
    assert strange in words(svg(Figure("it", "t", strange, (panel,))))
    assert "a$b$ &lt;c&gt; &amp; {d}_e ^f" in json.dumps(plotly(Figure("it", "t", "c", (panel,))))


def test_a_long_name_is_wrapped_between_its_parts() -> None:
    arm = "BYOL + ASCL, batch = 128, m = 0.97, lr = 0.05, weight decay = 0.002, smallest crop = 0.6"
    shown = words(svg(Figure("it", "t", "c", (Panel("", "x", "y", (a_line(arm),)),))))
    lines = [text for text in shown if "=" in text]
    assert " ".join(lines) == arm and len(lines) == 2
    for letters in range(20, len(arm)):
        lines = looks.wrapped(arm, letters).splitlines()
        assert " ".join(lines) == arm and max(map(len, lines)) <= letters
        assert not any(line.endswith("=") or line.startswith("=") for line in lines)


@each_figure
def test_a_png_is_as_wide_as_a_column_or_a_page(figure: Figure) -> None:
    picture = Image.open(io.BytesIO(png(figure)))
    assert picture.width == (draw.PAGE if len(figure.panels) > 1 else draw.COLUMN) * 150
    assert 200 < picture.height < 700
    assert len(picture.convert("L").getcolors() or []) > 10, "it is not blank"
    assert Image.open(io.BytesIO(png(figure, dpi=75))).width == picture.width // 2


def test_a_legend_extends_the_figure_instead_of_shrinking_the_plot() -> None:
    few = Figure("it", "t", "c", (Panel("", "x", "y", (a_line("one"),)),))
    many = Figure(
        "it", "t", "c", (Panel("", "x", "y", tuple(a_line(f"arm {i}" * 6) for i in range(12))),)
    )
    heights = [Image.open(io.BytesIO(png(figure))).height for figure in (few, many)]
    assert heights[1] - heights[0] > 11 * draw.LEGEND_LINE * 150


def test_a_users_own_style_changes_nothing() -> None:
    before = svg(FIGURES[0])
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert svg(FIGURES[0]) == before
        assert mpl.rcParams["font.size"] == 30, "and stays unchanged"


def test_figure_files_are_complete_and_named_after_their_figure(tmp_path: Path) -> None:
    written = write_figures(FIGURES[:2], tmp_path / "new" / "figures")
    names = ["it-curves.svg", "it-curves.png", "it-parameter.svg", "it-parameter.png"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "new" / "figures").iterdir()) == sorted(names)
    assert written[0].read_text(encoding="utf-8") == svg(FIGURES[0])
    assert written[1].read_bytes() == png(FIGURES[0])


# ---------------------------------------------------------------- plotly


@each_figure
def test_plotly_takes_it(figure: Figure) -> None:
    found = plotly(figure)
    checked = PlotlyFigure(found)  # raises on unknown properties
    assert len(checked.data) >= len(figure.panels)
    json.dumps(found, allow_nan=False)
    assert found["layout"]["paper_bgcolor"] == found["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert "font" not in json.dumps(found), "a page sets its own, light or dark"


def test_a_name_has_one_look_and_one_line_in_plotlys_legend() -> None:
    traces = plotly(FIGURES[0])["data"]
    for arm in ARMS:
        own = [trace for trace in traces if trace.get("legendgroup") == arm]
        lines = [trace for trace in own if "fill" not in trace]
        assert len(lines) == 2, "a panel each"
        assert [trace["showlegend"] for trace in lines] == [True, False]
        assert lines[0]["line"] == lines[1]["line"]


def test_plotlys_band_goes_up_along_high_and_back_along_low() -> None:
    series = Series("arm", (1, 2, 3), (5.0, 6.0, 7.0), (4.0, None, 6.0), (6.0, None, 8.0))
    band, line = plotly(Figure("it", "t", "c", (Panel("", "x", "y", (series,)),)))["data"]
    assert band["x"] == [1, 3, 3, 1] and band["y"] == [6, 8, 6, 4]
    assert line["y"] == [5, 6, 7]


# ---------------------------------------------------------------- looks


def test_no_two_of_many_series_look_the_same_even_in_grey() -> None:
    for marks, dashes in ((draw.MARKS, draw.DASHES), (interactive.SYMBOLS, interactive.DASHES)):
        seen = [
            (looks.COLORS[i % len(looks.COLORS)], marks[i % len(marks)], dashes[i % len(dashes)])
            for i in range(40)
        ]
        assert len(set(seen)) == 40
        gray = [look[1:] for look in seen[:12]]
        assert len(set(gray)) == 12, "marks and dashes alone distinguish the arms of a figure"


def test_colours_can_be_seen_on_white_and_on_black() -> None:
    for color in (*looks.COLORS, looks.GRAY):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (light + 0.05) > 2, f"{color} on white"
        assert (light + 0.05) / 0.05 > 2.5, f"{color} on black"


@pytest.mark.parametrize(
    ("x", "log", "shown"),
    [
        ((0.01, 0.02, 0.05, 0.01), True, [0.01, 0.02, 0.05]),
        ((1.0, 1.01, 5.0, 1.0), False, None),  # they would overlap
        (tuple(range(20)) * 2, False, None),
        ((0.93, 0.95, 0.99), False, None),  # costs, which are all different
    ],
)
def test_an_axis_is_marked_at_its_own_values_where_they_are_few(
    x: tuple[float, ...], log: bool, shown: list[float] | None
) -> None:
    series = Series("it", x, (1.0,) * len(x), kind="points")
    assert looks.ticks(Panel("", "x", "y", (series,), log_x=log)) == shown


def test_a_forest_plot_has_a_row_for_each_comparison_and_the_first_on_top() -> None:
    text = words(svg(FIGURES[-1]))
    for row in FOREST.rows:
        assert row.label in text and row.verdict in text
    drawn = plotly(FIGURES[-1])
    axis = drawn["layout"]["yaxis"]
    assert axis["ticktext"] == [row.label for row in FOREST.rows]
    assert axis["range"][0] > axis["range"][1], "the first row is on top"


def test_an_interactive_forest_plot_has_means_intervals_and_the_region() -> None:
    drawn = plotly(FIGURES[-1])
    for trace in drawn["data"]:
        (row,) = (each for each in FOREST.rows if each.verdict == trace["name"])
        assert trace["x"] == [pytest.approx(row.mean)]
        ends = row.interval or Interval(row.mean, row.mean)
        assert trace["error_x"]["arrayminus"] == [pytest.approx(row.mean - ends.low)]
        assert trace["error_x"]["array"] == [pytest.approx(ends.high - row.mean)]
    bands = [shape for shape in drawn["layout"]["shapes"] if shape["type"] == "rect"]
    assert [(band["x0"], band["x1"]) for band in bands] == [(-0.5, 0.5)]


def test_forest_plots_of_many_comparisons_are_taller() -> None:
    rows = tuple(ForestRow(f"K = {i}", i, Interval(i - 1, i + 1), "better", "") for i in range(40))
    many = Figure("it", "Δ", "n = 3.", (Panel("", "Δ", "", forest=Forest(rows, 0.0)),))
    few = FIGURES[-1]
    assert plotly(many)["layout"]["height"] > 2 * plotly(few)["layout"]["height"]
    tall, short = (Image.open(io.BytesIO(png(figure))).height for figure in (many, few))
    assert tall > 2 * short
