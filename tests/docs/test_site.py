"""The site of `make docs`: it is built without a warning and has every public name; notebooks are the pages' code."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from commands import succeed

import fedhead
from fedhead.methods import METHODS
from fedhead.recipes.recipe import load
from fedhead.stages import STAGES

ROOT = Path(__file__).parents[2]
GENERATE = ROOT / "docs" / "generate"
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: pip install 'fedhead[docs]'")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path)]
    succeed(build, ROOT)
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    for folder, registry in (("methods", METHODS), ("stages", STAGES)):
        assert {name for name in registry if f"{folder}/{name}.html" in pages} == set(registry)
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/"))
    missing = [name for name in fedhead.__all__ if f'id="fedhead.{name}"' not in reference]
    assert not missing
    assert "Clients send nothing." in pages["methods/local.html"]
    assert "<code>control</code> 4,810" in pages["methods/scaffold.html"]
