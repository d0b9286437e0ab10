"""A real browser: where it is, where its pictures go, and what a page in it complains of and asks for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AXE = ROOT / "build" / "axe-core" / "package" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"
CHROMIUM = os.environ.get("FEDHEAD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class Opened:
    """A page in the browser, with all that it complained of and asked for.

    Args:
        tab: Playwright's page.
    """

    def __init__(self, tab: Any):
        self.tab = tab
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def draw_all(self) -> None:
        """Draw the charts that are not on the screen yet."""
        self.tab.evaluate("document.querySelectorAll('figure.chart').forEach(f => { if (!f.drawn) fedhead.draw(f); })")
        self.tab.wait_for_timeout(300)

    def asked_others(self, *own: str) -> list[str]:
        """Return the requests for anything but what is its own."""
        return [url for url in self.requests if not url.startswith((*own, "data:", "blob:"))]
