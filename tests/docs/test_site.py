"""The site of `make docs`: it is built without a warning and has every public name; notebooks are the pages' code."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import succeed

import fedhead
from fedhead.methods import METHODS
from fedhead.recipes.components import registries
from fedhead.recipes.recipe import KEYS, load
from fedhead.runs import run_folder_schema
from fedhead.stages import STAGES

ROOT = Path(__file__).parents[2]
GENERATE = ROOT / "docs" / "generate"
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
READERS = ("Student", "Researcher", "Engineer at sites", "Contributor")
CELLS = """
import json, sys
names = {"__name__": "__main__"}  # as in a notebook
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


def generator(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of docs/generate."""
    monkeypatch.syspath_prepend(str(GENERATE))
    return importlib.import_module(name)


def test_the_reference_has_every_public_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = generator("reference", monkeypatch)
    shown = re.findall(r"^::: fedhead\.(\w+)$", "\n".join(reference.pages().values()), flags=re.MULTILINE)
    assert sorted(shown) == sorted(fedhead.__all__)


def test_examples_of_methods_and_stages_are_valid_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    components = generator("components", monkeypatch)
    for folder, registry in (("methods", METHODS), ("stages", STAGES)):
        for name in registry:
            recipe = load("digits", components.example(folder, name)[1:])
            assert name in (recipe.method, *recipe.stages)


def test_parameters_are_listed_with_ranges_and_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    components = generator("components", monkeypatch)
    rows = components._parameters("stages", "ccvr", STAGES["ccvr"])
    assert any(row.startswith("| `stage.ccvr.momentum` | `0.9` | a number, at least 0, below 1 | ") for row in rows)
    for folder, registry in (("methods", METHODS), ("stages", STAGES)):
        for name, cls in registry.items():
            rows = components._parameters(folder, name, cls)
            assert not [row for row in rows if row.endswith("|  |")], f"{name}: say what the parameter means"


def test_every_component_and_its_parameters_have_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    listings = generator("listings", monkeypatch)
    page = listings.pages()["reference/components.md"]
    for kind, registry in registries().items():
        if kind in ("methods", "stages"):
            continue  # they have a page each
        section = page.split(f"\n## {kind.capitalize()}\n")[1].split("\n## ")[0]
        own = [name for name in registry if registry.source(name).distribution == "fedhead"]  # not those of other tests
        assert [name for name in own if not re.search(rf"^\| `{name}\W", section, flags=re.MULTILINE)] == []
        assert own
    assert "| `ece(bins)` | `15` | a whole number, at least 1, at most 1024 | number of confidence bins |" in page
    empty = [line for line in page.splitlines() if "|  |" in line]
    assert not empty, "add the parameter to MEANINGS of docs/generate/listings.py"


def test_every_file_of_a_run_folder_has_an_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listings = generator("listings", monkeypatch)
    assert set(listings.FILES) == set(run_folder_schema.FILES)
    federation = fedhead.Federation.load("digits", "iid", clients=2, subset=60)
    settings = {"rounds": 1, "stages": ["ncm"], "executor": "loop"}
    fedhead.run(federation, "mlp(hidden=[8])", out=tmp_path / "run", **settings)
    written = {file.name for file in (tmp_path / "run").iterdir() if not file.name.startswith(".")}
    assert written <= set(listings.FILES)


def test_every_recipe_key_has_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator("reference", monkeypatch).pages()["reference/keys.md"]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `[^|]*` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(KEYS)
    assert [name for name, meaning in rows.items() if meaning.startswith("<br>") or "``" in meaning] == []


@pytest.mark.parametrize("page", ["quickstart.md", "own_model.md", "choosing.md"])
def test_notebooks_are_their_pages(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks = generator("notebooks", monkeypatch)
    written = (ROOT / "examples" / notebooks.PAGES[page]).read_text(encoding="utf-8")
    assert written == notebooks.notebook(page), "run python docs/generate/notebooks.py"
    assert all(not cell.get("outputs") for cell in json.loads(written)["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["five_minutes.ipynb", "own_model.ipynb", "choosing.ipynb"])
def test_notebooks_run(name: str, tmp_path: Path) -> None:
    succeed([sys.executable, "-c", CELLS, str(ROOT / "examples" / name)], tmp_path)


def navigation(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """The pages of the navigation, each with the title of its section."""
    for entry in entries:
        for section, inside in entry.items():
            pages = inside if isinstance(inside, list) else [inside]
            yield from ((section, page if isinstance(page, str) else next(iter(page.values()))) for page in pages)


def test_the_navigation_has_every_page_once() -> None:
    pages = [page for _, page in navigation(SITE["nav"])]
    assert sorted(page for page in pages if "/" not in page) == sorted(
        ["index.md", *(page.name for page in (ROOT / "docs").glob("*.md"))]
    )


def test_readers_have_the_same_paths_in_readme_and_navigation() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Where to go next")[1]
    for reader in READERS:
        (row,) = [line for line in table.splitlines() if line.startswith(f"| **{reader}** ")]
        linked = [repository_page(link) for link in re.findall(r"\]\(([^)]+)\)", row)]
        assert linked == [page for section, page in navigation(SITE["nav"]) if section == reader]
        assert len(linked) <= 5


def repository_page(link: str) -> str:
    """Return the path in the site of a file that README links to."""
    return link.removeprefix("docs/") if link.startswith("docs/") else f"project/{link}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_pages_are_short_and_begin_with_something_to_type_or_a_table(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 155
    assert max(map(len, lines)) <= 500  # rows of tables
    begin = next(n for n, line in enumerate(lines) if line.startswith(("```", "| ")))
    assert begin <= 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning() -> None:
    for package in ("zensical", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: pip install 'fedhead[docs]'")
    succeed([sys.executable, str(GENERATE / "site.py")], ROOT)
    succeed([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], ROOT)
    site = ROOT / SITE["site_dir"]
    pages = {page.relative_to(site).as_posix(): page.read_text("utf-8") for page in site.rglob("*.html")}
    for folder, registry in (("methods", METHODS), ("stages", STAGES)):
        assert {name for name in registry if f"{folder}/{name}.html" in pages} == set(registry)
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/"))
    missing = [name for name in fedhead.__all__ if f'id="fedhead.{name}"' not in reference]
    assert not missing
    assert "Clients send nothing." in pages["methods/local.html"]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", pages["methods/scaffold.html"])
    assert cells[cells.index("control") :][:4] == ["control", "4 parts", "float32", "19,240"]  # 4,810 weights
    assert "unpkg.com" not in "".join(pages.values())  # no request to other servers
