"""The tests that the pages name are there, and docs/reliability.md lists every kind of file that is attacked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "least"), [("reliability", 20), ("failures", 8), ("deployment", 1), ("site_settings", 1)]
)
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")))
    defined = set(
        re.findall(r"^def (test_\w+)", "\n".join(f.read_text() for f in ROOT.glob("tests/*/test_*.py")), re.M)
    )
    assert len(named) >= least
    assert named <= defined


def test_the_page_lists_every_reader() -> None:
    tree = ast.parse((ROOT / "tests" / "faults" / "test_mutations.py").read_text(encoding="utf-8"))
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "READERS")
    assert isinstance(found.value, ast.Dict)
    readers = [ast.literal_eval(key) for key in found.value.keys if key is not None]
    section = TEXT.split("## Damaged files")[1].split("\n## ")[0]
    assert re.findall(r"^\| ([^|]+) \| [\d,]+ \|", section, re.M) == readers
