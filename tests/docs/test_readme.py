"""README's numbers are those of the files that it takes them from."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_count_of_measured_values_is_that_of_the_results() -> None:
    counts = []
    for page in (ROOT / "README.md", ROOT / "results" / "README.md"):
        counts.append(re.findall(r"(\d+)\s+of\s+the\s+papers'\s+(\d+)", page.read_text(encoding="utf-8")))
    assert len(counts[1]) == 1
    assert counts[0] == counts[1]
