"""Report section on the paper's claims, and the extension `PAPER` that adds it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ascl_sweep.analysis.caption import percent
from ascl_sweep.analysis.comparison import Options
from ascl_sweep.analysis.consistency import letter
from ascl_sweep.analysis.inference import ALPHA
from ascl_sweep.analysis.looks import design_of
from ascl_sweep.contracts import RunRow
from ascl_sweep.report.document import Section, Text
from ascl_sweep.report.report import Appendix, Extension, PlainData, SweepReport
from ascl_sweep.report.tables import NONE, Cell, Table, signed
from ascl_sweep.reproduction.claims import CLAIMS, CURVES, SWEEPS, Claim, CurveScores, Score
from ascl_sweep.reproduction.compare import annotate_table
from ascl_sweep.reproduction.judge import Duel, Finding, Outcome, judge_claims
from ascl_sweep.store.store import Store
from ascl_sweep.text import plural

Number = TypeVar("Number", int, float)
OUTCOMES: tuple[Outcome, ...] = ("supported", "contradicted", "inconclusive", "not tested")
"""Outcomes that runs decide."""
CAPTION = (
    "Numbers of comparisons, all else equal: mean in the claimed direction, significantly for the "
    "claim (each at 5%) or against it (corrected), equivalent within ±{region:g} points; Δ is the "
    "range of means, in points or in percent of images per second",
    "Supported needs every planned comparison significantly for the claim, contradicted one "
    "against it; seeds needed would support it if its estimates stay the same",
)


def build_claims(store: Store, sweeps: Sequence[SweepReport], options: Options) -> Appendix:
    """Test the paper's claims on the runs of these sweeps, separately for each scale."""
    sections, data = [], []
    for scale in dict.fromkeys(found.sweep.scale for found in sweeps):
        own = [found for found in sweeps if found.sweep.scale == scale]
        levels = {
            found.sweep.name: design_of(found.digest).alpha_per_look
            for found in own
            if found.sweep.name in SWEEPS
        }
        rows = {row.run_id: row for found in own for row in found.runs}
        scores = _curve_scores(store, rows, set(levels))
        findings = judge_claims(rows.values(), levels, scores, options.region)
        if findings:
            sections.append(_section(findings, scale, options.region))
            data += [_plain(found, scale) for found in findings]
    return Appendix("claims", tuple(sections), tuple(data))


PAPER = Extension(annotate_table, build_claims)
"""Adds the ASCL paper's values and claims to a report."""


def _curve_scores(store: Store, rows: Mapping[str, RunRow], names: set[str]) -> CurveScores:
    """Compute the scores that need all epochs of a run."""
    needed: dict[Score, set[str]] = {}
    for claim in CLAIMS:
        if claim.score in CURVES:
            own = {i for i, row in rows.items() if set(row.sweeps) & set(claim.sweeps) & names}
            needed.setdefault(claim.score, set()).update(own)
    found: dict[Score, dict[str, float]] = {score: {} for score, runs in needed.items() if runs}
    if not found:
        return {}
    for run_id, curve in store.curves(sorted({CURVES[score][0] for score in found})):
        for score, values in found.items():
            if run_id in needed[score]:
                metric, summarize = CURVES[score]
                value = summarize(curve["epoch"], curve[metric])
                if value is not None:
                    values[run_id] = value
    return found


def _section(findings: Sequence[Finding], scale: str, region: float) -> Section:
    tested = [found for found in findings if found.outcome != "settled"]
    settled = [found for found in findings if found.outcome == "settled"]
    laptop = scale == "laptop"
    on_scale = (
        "Results at laptop scale (reduced data, network and epochs); they neither confirm nor "
        "refute the paper."
    )
    blocks: list[Table | Text] = []
    if tested:
        counts = Counter(found.outcome for found in tested)
        listed = ", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o])
        first = f"Of {plural(len(tested), 'claim')}: {listed}."
        blocks.append(Text((first, *([on_scale] if laptop else []))))
        blocks.append(_table(tested, scale, region))
    if settled:
        items = tuple(f"{f.claim.text} ({f.claim.source}): {f.why}." for f in settled)
        blocks.append(
            Text(items, "Claims that follow from the equations, or that no run can decide")
        )
    title = f"Claims of the paper{' (laptop scale)' if laptop else ''}"
    return Section("", title, tuple(blocks))


def _table(findings: Sequence[Finding], scale: str, region: float) -> Table:
    remarks = dict.fromkeys(text for found in findings for text in _remarks(found))
    marks = {text: letter(place) for place, text in enumerate(remarks)}
    return Table(
        name=f"claims-{scale}",
        title="Claims: results of our runs",
        header=(
            *("claim", "source", "result", "direction agrees", "significantly for"),
            *("significantly against", "equivalent", "Δ", "seeds", "seeds needed"),
        ),
        align="lllrrrrrrr",
        rows=tuple(_row(found, marks) for found in findings),
        caption=tuple(text.format(region=region) for text in CAPTION),
        notes=tuple((mark, f"{text[0].upper()}{text[1:]}.") for text, mark in marks.items()),
    )


def _remarks(found: Finding) -> tuple[str, ...]:
    level = ""
    if found.level < ALPHA and found.outcome != "settled":
        level = (
            f"tested at {percent(found.level)} instead of {percent(ALPHA)}, because results "
            "decided on the seeds"
        )
    return tuple(filter(None, (found.why, found.claim.note, level)))


def _row(found: Finding, marks: Mapping[str, str]) -> tuple[Cell, ...]:
    duels = found.duels
    means = [_shown(found.claim, duel.result.mean) for duel in duels]
    seeds = [duel.result.n for duel in duels]
    unit = "%" if found.claim.score == "speed" else ""
    span = " to ".join(signed(x, 2) + unit for x in _ends(means))
    return (
        Cell(found.claim.text),
        Cell(found.claim.source),
        Cell(found.outcome, marks=tuple(marks[text] for text in _remarks(found))),
        Cell(f"{found.agreeing}/{len(duels)}" if duels else NONE),
        Cell(str(sum(duel.supports for duel in duels)) if duels else NONE),
        Cell(str(sum(duel.opposes for duel in duels)) if duels else NONE),
        Cell(str(sum(duel.equivalent for duel in duels)) if duels else NONE),
        Cell(span or NONE),
        Cell("–".join(map(str, _ends(seeds))) or NONE),
        Cell(NONE if found.seeds_needed is None else f"+{found.seeds_needed}"),
    )


def _shown(claim: Claim, difference: float) -> float:
    """Convert a difference of logarithms to percent; points stay as they are."""
    return 100 * math.expm1(difference / 100) if claim.score == "speed" else difference


def _ends(values: Sequence[Number]) -> list[Number]:
    """Return the smallest and the largest value, once if they are equal."""
    return sorted({min(values), max(values)}) if values else []


def _plain(found: Finding, scale: str) -> PlainData:
    return {
        "name": f"{found.claim.text} ({scale})",
        "claim": found.claim.text,
        "scale": scale,
        "source": found.claim.source,
        "metric": found.claim.score,
        "outcome": found.outcome,
        "why": found.why,
        "note": found.claim.note,
        "level": found.level,
        "seeds_needed": found.seeds_needed,
        "comparisons": [_plain_duel(duel, found.level) for duel in found.duels],
    }


def _plain_duel(duel: Duel, level: float) -> PlainData:
    """Return a comparison; its interval has coverage 1 − level (95%) and no correction.

    For speed, mean and interval are 100 times the logarithm of the ratio.
    """
    interval = duel.result.interval(level)
    return {
        "what": duel.label,
        "n": duel.result.n,
        "mean": duel.result.mean,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "df": duel.result.df,
        "wins": duel.result.wins,
        "p": duel.p,
        "corrected_p": duel.corrected_p,
        "supports": duel.supports,
        "opposes": duel.opposes,
        "equivalent": duel.equivalent,
    }
