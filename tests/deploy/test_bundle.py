"""The bundle that Flower sends to every site: what it holds, and that it stays the same however often it is built."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab

from fedhead.deploy.project import Project

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of flwr itself
GUIDE = Path(__file__).parents[2] / "docs" / "site_settings.md"
HELD = {"pyproject.toml", ".info/CONTENT"}


def lived_in(folder: Path) -> Project:
    """A project as it lies on a disk after a while: with a site's own code, states, figures and logs."""
    project = Project.init(folder, "digits", ["north", "south"], ["rounds=2"])
    files = ["sites/north/mydata.py", "sites/north/state/ab/north/notes.json", "run/metrics.jsonl", "run/config.yaml"]
    files += ["recipe.yaml", "mine.py", ".deploy/state.json", ".deploy/flwr/config.toml", "certs/sites/notes.md"]
    for name in [*files, "app/forgotten.py", "app/__pycache__/forgotten.json"]:
        (project.path / name).parent.mkdir(parents=True, exist_ok=True)
        (project.path / name).write_text("secret = 4711\n")
    return project


def test_the_bundle_holds_what_a_site_needs_and_nothing_else(tmp_path: Path) -> None:
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(lived_in(tmp_path / "clinic").app)))
    assert set(bundle.namelist()) == HELD
    assert not any(b"4711" in bundle.read(name) for name in bundle.namelist())


def test_the_guide_lists_the_bundle_by_name() -> None:
    text = GUIDE.read_text(encoding="utf-8").split("\n## What the server sends to every site\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^- `([^`]+)`:", text, flags=re.MULTILINE)) == HELD


def test_the_bundle_of_the_twentieth_restart_is_the_first_one(tmp_path: Path) -> None:
    project = lived_in(tmp_path / "clinic")
    first = build_fab_from_disk(project.app)
    for _ in range(20):
        bundle = build_fab_from_disk(project.app)
        assert bundle == first
        install_from_fab(bundle, project.private / "flwr", skip_prompt=True)  # where a SuperNode unpacks it
    depth = max(len(path.relative_to(project.path).parts) for path in project.private.rglob("*"))
    assert depth < 10  # Flower refuses to bundle a folder that is deeper
