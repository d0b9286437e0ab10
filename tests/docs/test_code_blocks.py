"""Every code block of README, CONTRIBUTING and docs is run as it is printed, or marked as none by its language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commands import succeed
from scripts import run_script

from fedhead.core.system.yaml_text import read_yaml
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.recipes.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
PAGES |= {page.relative_to(ROOT).as_posix(): page for page in sorted((ROOT / "docs").glob("*.md"))}
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NOT_RUN = {"console", "text", "yaml"}  # transcripts, output and files of other programs
ELSEWHERE = {f"docs/{page}.md" for page in ("deployment", "operating", "three_hospitals")}  # run by tests/deploy


def blocks(page: str, language: str) -> list[str]:
    """A page's blocks of one language, in order."""
    return [text for info, text in BLOCK.findall(PAGES[page].read_text(encoding="utf-8")) if info == language]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    languages = [info for info, _ in BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))]
    assert set(languages) <= {"python", "sh"} | NOT_RUN, f"{page}: mark each block as one of them"


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_blocks_run(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    run_script(script, tmp_path)


def shell_pages() -> list[Any]:
    """Return the pages with commands; those that take minutes are of the long tier."""
    minutes = {"docs/ccvr.md", "docs/fedetf.md", "docs/fedclassavg.md"}
    minutes |= {"docs/tuning.md", "docs/plugins.md", "docs/sweeps.md"}
    pages = [page for page in PAGES if blocks(page, "sh") and page not in ELSEWHERE]
    return [pytest.param(page, marks=pytest.mark.long if page in minutes else pytest.mark.slow) for page in pages]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", shell_pages())
def test_shell_blocks_run(page: str, tmp_path: Path) -> None:
    for block in blocks(page, "sh"):
        succeed(["bash", "-euo", "pipefail", "-c", block], tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_yaml_blocks_are_read(page: str) -> None:
    for block in blocks(page, "yaml"):
        keys = read_yaml(block, page)
        if "columns" in keys:
            TableSchema.from_mapping(keys)
        elif not keys.keys() & {"axes", "allow"}:  # those are files of a sweep and of a site
            Recipe.from_yaml(block, page)


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_links_exist(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"^\$? ?make ([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    for link in re.findall(r"\]\(([\w./-]+)[#)]", text):
        assert (PAGES[page].parent / link).exists(), link
