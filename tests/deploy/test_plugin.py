"""A plugin package that pip installed, deployed with real processes and TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from federal_plugin import CODE, ENTRY_POINTS

from fedhead.cli import call
from fedhead.core.tree.treefile import load_tree
from fedhead.deploy import certificates
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT

pytestmark = [pytest.mark.deploy, pytest.mark.drill, pytest.mark.timeout(900)]
SITES = ["north", "south", "west"]
RECIPE = """
dataset: moons
partition: halves(share=0.4)
model: tinynet
method: fedmine
method.mu: 0.1
stages: [shrink]
metrics: [first_recall]
rounds: 2
batch_size: 16
client_test: 0.2
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin, built and installed by pip into a folder that all processes have on their path."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "federal.py").write_text(CODE)
    points = "".join(
        f'[project.entry-points."{group}"]\n' + "".join(f'{word} = "{value}"\n' for word, value in entries.items())
        for group, entries in ENTRY_POINTS.items()
    )
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "federal-plugin"\nversion = "1.2"\n[tool.setuptools]\npy-modules = ["federal"]\n' + points
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    sys.modules.pop("federal", None)
    yield site
    sys.modules.pop("federal", None)


def test_an_installed_plugin_is_deployed_with_tls_and_equals_a_simulation(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    project = Project.init(tmp_path / "demo", str(tmp_path / "mine.yaml"), SITES)
    assert all(file.allow == ("federal",) for file in project.sites().values())
    certificates.write(project.certs, ["127.0.0.1"], SITES)
    LocalFederation(project, secure=True).run()
    run = project.path / "run"
    found = json.loads((run / "result.json").read_text())
    torch.set_num_threads(1)
    expected = execute(project.server().recipe_of_run(), tmp_path / "sim", Compute(executor="loop", threads=1))
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert found["metrics"].keys() == {"first_recall"}
    assert found["stages"].keys() == expected["stages"].keys() == {"Shrink"}
    mine, theirs = (load_tree(folder / CHECKPOINT)[0]["server"].leaves() for folder in (run, tmp_path / "sim"))
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, atol=1e-6, rtol=1e-6)
    recorded = {entry["kind"]: entry for entry in RunFolder.open(run).environment()["components"]}
    assert recorded["method"]["distribution"] == "federal-plugin"
    assert recorded["method"]["version"] == "1.2"
    assert call(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert call(["analyse", "sizes", str(run)]) == 0
