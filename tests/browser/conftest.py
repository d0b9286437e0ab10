"""A real browser, and the sweep that it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, Opened
from made_runs import make_sweep

from fedhead.report.page import page as report_page


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: apt install chromium, or name it in FEDHEAD_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """Open an address in a window of some width and color scheme."""
    contexts = []

    def opening(url: str, width: int = 1280, scheme: str = "light") -> Opened:
        phone = {"has_touch": width < 600, "is_mobile": width < 600}
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **phone)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.tab.goto(url)
        return opened

    yield opening
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 runs: 5 methods, 4 partitions, 3 seeds."""
    return make_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def report(sweep: Path) -> Path:
    """Their page."""
    return report_page.write([sweep], sweep.parent / "report" / "report.html")
