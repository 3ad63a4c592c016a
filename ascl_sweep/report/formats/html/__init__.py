"""The report as one HTML file that opens from disk and needs no network, and as a live page.

page.html page.css      structure and style
theme.js page.js        light and dark mode · copy buttons, sweep filter
figures.js runs.js      figures, drawn when scrolled into view · list of runs
page.py tables.py       the page · its tables, and those for notebooks
runs.py                 compact encoding of the runs
live.js live.css        updates of a live page, which `report/live.py` serves
running.py              the live page's section on the runs that train now
"""

import re

from ascl_sweep.report.formats.base import DEFAULT_TARGET, Format, Target
from ascl_sweep.report.formats.html.page import render_page
from ascl_sweep.report.formats.json import FORMAT as JSON
from ascl_sweep.report.provenance import StoredReport
from ascl_sweep.report.report import Report


class Html(Format):
    name = "html"
    suffixes = (".html", ".htm")

    def render(self, report: Report, target: Target = DEFAULT_TARGET) -> str:
        if target.store is None:
            raise ValueError("the HTML format needs Target.store")
        return render_page(report, target.store, target.figures)

    def read(self, text: str) -> StoredReport | None:
        """Read the JSON that is embedded in a page."""
        is_page = re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE)
        element = r"""(?s)<script\b[^>]*\bid=["']?report["']?(?:\s[^>]*)?>(.*?)</script>"""
        found = re.search(element, text) if is_page else None
        return JSON.read(found[1].strip()) if found else None


FORMAT = Html()
