"""The example store, its report and a browser, shared by the tests of reports."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from ascl_sweep.report.report import Report
from ascl_sweep.store.store import Store
from tests.stores import example, paper_report

# Flags to start Chromium in a container and to disable its background network traffic.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return example(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="package")
def report(store: Store) -> Report:
    return paper_report(store)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("chromium is not installed; run `apt-get install chromium`")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=binary, args=FLAGS)
        yield chromium
        chromium.close()
