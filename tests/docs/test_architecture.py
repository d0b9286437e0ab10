"""The page about the architecture names files that exist, and every package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fedhead"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDER_LIMIT = 20


def test_named_files_exist() -> None:
    names = set(re.findall(r"`((?:\w+/)+\w+\.py)(?::\w+)?`", PAGE))
    assert len(names) > 25
    assert [name for name in sorted(names) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


def test_every_package_has_a_line() -> None:
    table = PAGE.split("| package |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines()[2:])))
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert named == packages


def test_no_folder_is_a_drawer() -> None:
    counts = {str(path.parent.relative_to(PACKAGE)): 0 for path in PACKAGE.rglob("*.py")}
    for path in PACKAGE.rglob("*.py"):
        counts[str(path.parent.relative_to(PACKAGE))] += 1
    assert {folder: count for folder, count in counts.items() if count > FOLDER_LIMIT + 1} == {}  # and its __init__.py
