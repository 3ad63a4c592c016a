"""CSV: the runs of all sweeps as one table with one row per run."""

import csv
import io

from ascl_sweep.report.formats.base import CommentedFormat, Target
from ascl_sweep.report.report import Report
from ascl_sweep.report.rows import run_columns, run_rows
from ascl_sweep.text import printable


class Csv(CommentedFormat):
    name = "csv"
    suffixes = (".csv",)
    comment = ("#", "")

    def render_body(self, report: Report, target: Target) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, run_columns(report), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _plain(v) for name, v in row.items()} for row in run_rows(report))
        return out.getvalue()


def _plain(value: object) -> object:
    """Put text on one line: `csv` does not quote a carriage return, and readers split there."""
    return printable(" ".join(value.split())) if isinstance(value, str) else value


FORMAT = Csv()
