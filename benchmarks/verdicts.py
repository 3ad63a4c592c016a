"""The present inference on the printed tables of docs/paper, whose runs are lost.

The interval of the old paired t-test gives the standard deviation of each comparison's differences.
The correlation r of the comparisons is not printed, so each verdict is computed for all r that the
moderated test uses, from 0.5 to 1. References are outside the comparisons.

    python -m benchmarks.verdicts          # the rows whose verdict changes, and counts
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ascl_sweep.analysis.comparison import REGION
from ascl_sweep.analysis.inference import (
    SMALLEST_CORRELATION,
    Estimate,
    Inference,
    decide,
    moderate,
)

PAPER = Path(__file__).resolve().parent.parent / "docs" / "paper"
REPORTS = ("laptop", "cifar10")
CORRELATIONS = tuple(np.linspace(SMALLEST_CORRELATION, 1, 51).round(2).tolist())
REFERENCE = "Supervised"


@dataclass(frozen=True)
class Row:
    """A printed comparison."""

    report: str
    sweep: str
    arm: str
    difference: float
    n: int
    sd: float | None
    """Standard deviation of the paired differences; None for one seed."""
    p: str
    verdict: str
    """As printed: by paired t-tests with Holm's correction."""


def read_rows(report: str) -> Iterator[Row]:
    """Yield the comparisons of a printed report."""
    from scipy.special import stdtrit

    sweep, columns = "", dict[str, int]()
    for line in (PAPER / f"{report}.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            sweep = line.removeprefix("## ").split(" (")[0].replace("\\", "")
        elif cells[0] == "arm":
            columns = {name: place for place, name in enumerate(cells)}
        elif line.startswith("| ") and "95% interval" in columns and len(cells) == len(columns):
            found = {name: cells[place] for name, place in columns.items()}
            if found["Δ"] in ("–", "---:"):
                continue
            n = int(found["wins"].split("/")[1])
            ends = [_number(text) for text in re.findall(r"[+−]?[\d.]+", found["95% interval"])]
            sd = None
            if ends:
                sd = (ends[1] - ends[0]) / 2 * math.sqrt(n) / float(stdtrit(n - 1, 0.975))
            arm = re.sub(r"<sup>.*?</sup>", "", found["arm"])
            yield Row(
                *(report, sweep, arm, _number(found["Δ"]), n, sd), found["p"], found["verdict"]
            )


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


def decide_again(rows: Sequence[Row], correlation: float) -> list[Inference]:
    """Decide the comparisons of one table by the present inference."""
    found = []
    for row in rows:
        others = [(r.n - 1, r.sd**2) for r in rows if r is not row and r.sd is not None]
        own = None if row.sd is None else row.sd**2
        se, df = moderate(row.n, own, others, correlation)
        found.append(decide(Estimate(row.n, row.difference, 0, se, df), len(rows), REGION))
    return found


@dataclass(frozen=True)
class Change:
    """A printed comparison and its present results by correlation."""

    row: Row
    found: dict[float, Inference]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Present verdicts, from the smallest correlation to the largest; two if it depends."""
        return tuple(dict.fromkeys(each.verdict or "–" for each in self.found.values()))

    @property
    def kind(self) -> str:
        """How the verdict changes."""
        if len(self.verdicts) > 1:
            return "depends on r"
        return "keeps" if self.verdicts == (self.row.verdict,) else "changes"

    def describe(self) -> str:
        first, last = (self.found[r] for r in (CORRELATIONS[0], CORRELATIONS[-1]))
        parts = [f"{self.row.report}, {self.row.sweep}: {self.row.arm}, {self.row.difference:+.2f}"]
        parts.append(f"{self.row.verdict} (p = {self.row.p}) → {', '.join(self.verdicts)}")
        if len(self.verdicts) > 1:
            decided = [r for r, each in self.found.items() if each.verdict == self.verdicts[0]]
            parts.append(f"{self.verdicts[0]} up to r = {max(decided)}")
        for each in (first, last):
            if each.p is not None and each.interval is not None and each.estimate.df is not None:
                ends = f"[{each.interval.low:+.2f}, {each.interval.high:+.2f}]"
                parts.append(f"p = {each.p:.3f}, {ends}, df {each.estimate.df:.1f}")
        return "; ".join(parts)


def changes(report: str) -> Iterator[Change]:
    """Yield the comparisons of a report with their present results."""
    rows = [row for row in read_rows(report) if not row.arm.startswith(REFERENCE)]
    for sweep in dict.fromkeys(row.sweep for row in rows):
        own = [row for row in rows if row.sweep == sweep]
        made = {r: decide_again(own, r) for r in CORRELATIONS}
        for place, row in enumerate(own):
            yield Change(row, {r: found[place] for r, found in made.items()})


def main() -> None:
    for report in REPORTS:
        found = list(changes(report))
        counts = Counter(each.kind for each in found)
        print(f"{report}: {len(found)} comparisons, {dict(counts)}")
        for each in found:
            if each.kind != "keeps" or each.row.verdict not in ("undecided", "–"):
                print("-", each.describe())


if __name__ == "__main__":
    main()
