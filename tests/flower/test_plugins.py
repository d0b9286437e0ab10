"""Code of the user's own on Flower: it trains as in a simulation, and a site runs only what its site.yaml allows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import plugin_package
import pytest
import torch
from federal_plugin import CODE, ENTRY_POINTS
from tiers import quick

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.tree.treefile import load_tree
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.flower import factory
from fedhead.flower.config import SiteFile
from fedhead.flower.server_run import serve
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.testing.inprocess import InProcess

WORDS = {
    "file": [
        "method=own/federal.py:FedMine",
        "model=own/federal.py:net",
        "stages=[own/federal.py:Shrink]",
        "aggregator=own/federal.py:Shortest(1)",
    ],
    "package": ["method=fedmine", "model=federal:net", "stages=[shrink]", "aggregator=shortest(1)"],
}
DATA = ["subset=120", "rounds=2", "partition=dirichlet(1.0)", "batch_size=16", "client_test=0.3"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin package on sys.path, and its file in the working directory."""
    folder = plugin_package.install(tmp_path / "site", "federal-plugin", {"federal": CODE}, ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "here" / "own").mkdir(parents=True)
    (tmp_path / "here" / "own" / "federal.py").write_text(CODE)
    monkeypatch.chdir(tmp_path / "here")
    sys.modules.pop("federal", None)
    yield folder
    sys.modules.pop("federal", None)


def project(folder: Path, words: list[str]) -> Project:
    made = Project.init(folder / "demo", "digits", ["site-0", "site-1"], [*DATA, *words])
    text = made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3")
    made.server_file.write_text(text)
    return made


def grid(made: Project) -> InProcess:
    return InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})


@pytest.mark.parametrize("how", quick(WORDS, "file"))
def test_the_user_s_own_code_equals_a_simulation(
    how: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(tmp_path, WORDS[how])
    monkeypatch.chdir(tmp_path)  # the files that are needed lie beside server.yaml and each site.yaml
    allowed = {"file": ("own/federal.py",), "package": ("federal",)}[how]
    assert all(file.allow == allowed for file in made.sites().values())
    found = serve(made.server(), grid(made), log=lambda line: None)
    torch.set_num_threads(1)
    expected = execute(made.server().recipe_of_run(), tmp_path / "sim", Compute(executor="loop", threads=1))
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    assert found["stages"].keys() == expected["stages"].keys()
    for name, stage in expected["stages"].items():
        assert found["stages"][name]["accuracy"] == pytest.approx(stage["accuracy"], abs=1e-6)
    mine, theirs = (
        load_tree(path / "checkpoint.safetensors")[0]["server"] for path in (made.path / "run", tmp_path / "sim")
    )
    for name, tensor in theirs.leaves().items():
        torch.testing.assert_close(mine.leaves()[name], tensor, atol=1e-6, rtol=1e-6)
    assert RunFolder.open(made.path / "run").environment()["components"][0]["name"] == WORDS[how][0].partition("=")[2]


@pytest.mark.parametrize("how", quick(WORDS, "package"))
def test_a_site_refuses_what_it_does_not_allow_before_it_is_imported(how: str, site: Path, tmp_path: Path) -> None:
    made = project(tmp_path, WORDS[how])
    for file in made.sites().values():
        text = file.path.read_text()
        file.path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("allow")))
        (file.path.parent / "own" / "federal.py").unlink(missing_ok=True)
    terms = factory.run_spec(made.server())
    before = {name for name in sys.modules if "federal" in name}
    for name in before:
        del sys.modules[name]
    with pytest.raises(FedheadError) as caught:
        factory.site(SiteFile.read(made.path / "sites" / "site-0" / "site.yaml")).site_run(terms, 0)
    assert str(caught.value) == factory.FOREIGN
    assert not [name for name in sys.modules if "federal" in name]
    with pytest.raises(FedheadError, match=r"the run names code that its site\.yaml does not allow"):
        serve(made.server(), grid(made), log=lambda line: None)


def test_a_site_refuses_other_code_than_the_server_s(site: Path, tmp_path: Path) -> None:
    made = project(tmp_path, WORDS["file"])
    terms = factory.run_spec(made.server())
    copy = made.path / "sites" / "site-1" / "own" / "federal.py"
    copy.write_text(CODE.replace("self.mu / 2", "self.mu / 4"))
    first, second = made.sites().values()
    assert factory.site(first).site_run(terms, 0)
    with pytest.raises(
        FedheadError, match=r"own/federal\.py:FedMine is not the same code at this site as at the server"
    ):
        factory.site(second).site_run(terms, 1)


def test_the_server_refuses_a_site_s_own_model_that_it_does_not_allow(site: Path, tmp_path: Path) -> None:
    made = project(tmp_path, ["method=local"])
    server = made.server()
    terms = factory.run_spec(server)
    recipe = server.recipe_of_run()
    data = factory.server_data(server, recipe)
    coordinator = factory.transport(server, terms, recipe, data, grid(made), log=lambda line: None)
    for own in ({"model": "federal:net"}, {"model": "mlp", "model.head": "federal:Cosine"}):
        with pytest.raises(BadInput) as caught:
            coordinator.dry_run.assign(0, own)
        assert str(caught.value) == factory.FOREIGN_MODEL
    with pytest.raises(BadInput, match="no model's"):
        coordinator.dry_run.assign(0, {"method": "federal:FedMine"})
    assert "federal" not in sys.modules
    made.server_file.write_text(made.server_file.read_text() + "allow: [federal]\n")
    coordinator = factory.transport(made.server(), terms, recipe, data, grid(made), log=lambda line: None)
    coordinator.dry_run.assign(0, {"model": "federal:net"})


def test_a_deployment_takes_no_file_from_elsewhere(site: Path, tmp_path: Path) -> None:
    for where in ("../here/own/federal.py", str(tmp_path / "here" / "own" / "federal.py")):
        with pytest.raises(BadInput, match="its path must be relative"):
            project(tmp_path, [f"method={where}:FedMine"])
    assert not (tmp_path / "demo").exists()
