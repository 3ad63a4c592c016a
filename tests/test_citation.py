"""CITATION.cff has the keys that CFF 1.2.0 requires, and matches the package."""

import re

import yaml

import ascl_sweep
from tests.paths import ROOT

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def test_citation_has_the_required_keys() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(CITATION)
    assert CITATION["authors"] == [{"name": "The ascl-sweep authors"}]
    assert CITATION["license"] == "MIT"


def test_citation_has_the_version_of_the_package() -> None:
    assert CITATION["version"] == ascl_sweep.__version__


def test_citation_prefers_the_paper() -> None:
    paper = CITATION["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == ["Feng", "Patras"]
    [identifier] = paper["identifiers"]
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", identifier["value"])
    assert paper["url"] == f"https://arxiv.org/abs/{identifier['value'].removeprefix('arXiv:')}"
