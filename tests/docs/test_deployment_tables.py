"""The tables of docs/site_settings.md list the keys of site.yaml and server.yaml, all of them and no others."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fedhead.flower.config import ServerFile, SiteFile

GUIDE = Path(__file__).parents[2] / "docs" / "site_settings.md"


@pytest.mark.parametrize(("section", "file"), [("site.yaml", SiteFile), ("server.yaml", ServerFile)])
def test_the_table_lists_every_key(section: str, file: type[SiteFile] | type[ServerFile]) -> None:
    text = GUIDE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| \S", text, flags=re.MULTILINE)
    listed = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(file) if field.name != "path")
