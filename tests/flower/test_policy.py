"""A site's policy: what goes beyond it is refused at the site, by code, and the site's own log says what it was."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhead.core.system.errors import BadInput
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.flower import factory
from fedhead.flower.config import SiteFile
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.site.policy import Policy
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import Request, Response, read_response, to_json
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess, through_bytes

WORDS = ["subset=120", "rounds=1", "stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1"]


def project(folder: Path, *words: str, keys: str = "") -> Project:
    made = Project.init(folder / "demo", "digits", ["north", "south"], [*WORDS, *words])
    made.server_file.write_text(made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3"))
    with (made.path / "sites" / "north" / "site.yaml").open("a") as yaml:
        yaml.write(keys)
    return made


def hello(made: Project, **recipe: Any) -> Response:
    """Return the first site's answer to a server whose recipe has these keys."""
    spec = factory.run_spec(made.server())
    spec.recipe.update(recipe)
    site = factory.site_of(str(made.path / "sites" / "north" / "site.yaml"))
    content = respond(through_bytes(wire.pack(to_json(Request("hello", spec, 60.0)), {})), site, watchdog=False)
    return read_response(wire.unpack(through_bytes(content))[0])


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ("methods: [fedprox]\n", "the method 'fedavg' is not among 'methods' in site.yaml: fedprox"),
        ("stages: []\n", "the stage 'ccvr' is not among 'stages'"),
        ("models: [resnet20]\n", "the model 'mlp' is not among 'models'"),
    ],
)
def test_what_the_policy_does_not_name_is_refused(
    keys: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(tmp_path, keys=keys)
    response = hello(made)
    assert response.problem == "policy"
    assert reason in capsys.readouterr().err


def test_a_run_goes_on_without_a_site_that_refuses_it(tmp_path: Path) -> None:
    made = project(tmp_path, keys="methods: [fedprox]\n")
    nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    told: list[str] = []
    found = serve(made.server(), InProcess(nodes), log=told.append)
    assert found["rounds"] == 1
    assert any("its site.yaml does not allow this run" in line for line in told)


def test_what_the_policy_names_is_carried_out(tmp_path: Path) -> None:
    keys = "methods: [fedavg]\nstages: [ccvr]\nmodels: [mlp]\n"
    assert hello(project(tmp_path, keys=keys)).problem is None
    policy = Policy(models=("mlp",))
    policy.check(Recipe(dataset="digits", model="protocnn(channels=18)"), {"model": "resnet20"})  # the site has its own
    with pytest.raises(SiteProblem, match="protocnn"):
        policy.check(Recipe(dataset="digits", model=("mlp", "protocnn(channels=18)")), {})


def test_a_stage_that_another_one_begins_with_needs_to_be_allowed_too() -> None:
    stage = STAGES["finetune_ccvr"]()
    Policy(stages=("finetune_ccvr", "ccvr")).check_earlier([stage])
    with pytest.raises(SiteProblem, match="the stage 'ccvr'"):
        Policy(stages=("finetune_ccvr",)).check_earlier([stage])


def test_a_server_can_t_have_a_site_read_its_files(tmp_path: Path) -> None:
    made = project(tmp_path)
    secret = tmp_path / "patients.npz"
    np.savez(secret, x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 10)
    for name in (str(secret), os.path.relpath(secret), str(tmp_path / "absent.npz"), "absent", str(tmp_path)):
        assert hello(made, dataset=name).problem == "policy", name  # alike whether or not anything is there
    assert hello(made, public=str(secret)).problem == "policy"
    site = made.path / "sites" / "north" / "site.yaml"
    text = site.read_text().replace("paths: []", f"paths: [{secret}]")
    site.write_text(text)
    assert hello(made, dataset=str(secret), subset=None).problem is None
    (tmp_path / "link.npz").symlink_to(secret)
    assert hello(made, dataset=str(tmp_path / "other.npz")).problem == "policy"
    assert hello(made, dataset=str(tmp_path / "link.npz"), subset=None).problem is None  # it is the allowed file


def test_a_deployment_of_own_data_allows_its_path(tmp_path: Path) -> None:
    own = tmp_path / "own.npz"
    np.savez(own, x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 10)
    made = Project.init(tmp_path / "demo", "digits", ["north"], [f"dataset={own}", "rounds=1"])
    assert SiteFile.read(made.path / "sites" / "north" / "site.yaml").paths == (str(own),)


def test_real_sites_leave_small_classes_out(tmp_path: Path) -> None:
    made = project(tmp_path, "partition=dirichlet(0.1)")
    nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    told: list[str] = []
    serve(made.server(), InProcess(nodes), log=told.append)
    assert SiteFile.read(made.path / "sites" / "north" / "site.yaml").min_class_count == 5
    row = json.loads((made.path / "run" / "result.json").read_text())["stages"]["ccvr"]
    assert row["left_out"]
    assert row["left_out"].keys() <= {"north", "south"}


def test_one_round_equals_a_simulation_only_where_sites_leave_no_class_out(tmp_path: Path) -> None:
    """Sites keep classes of fewer than 5 samples to themselves unless told otherwise; a simulation sends all."""
    words = ["partition=dirichlet(0.1)", "rounds=0", "stages=[ridge]", "model.hidden=[16]"]
    few = ["stage.ridge.absent=never", "stage.ridge.alpha=1.0", "subset=120"]
    made = Project.init(tmp_path / "demo", "digits", ["north", "south"], [*words, *few])
    simulated = execute(made.server().recipe_of_run(), tmp_path / "alone", Compute())
    expected = simulated["stages"]["ridge"]["accuracy"]

    def served(name: str) -> tuple[dict[str, Any], str]:
        nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
        told: list[str] = []
        serve(replace(made.server(), out=str(tmp_path / name)), InProcess(nodes), log=told.append)
        found: dict[str, Any] = json.loads((tmp_path / name / "result.json").read_text())["stages"]["ridge"]
        return found, "\n".join(told)

    found, told = served("policy")
    assert found["left_out"]
    assert found["accuracy"] != expected
    for name, classes in found["left_out"].items():
        assert f"stage ridge: {name} left out classes {classes}, with fewer samples than its min_class_count" in told
    for name in ("north", "south"):
        with (made.path / "sites" / name / "site.yaml").open("a") as yaml:
            yaml.write("min_class_count: 1\n")
    found, told = served("everything")
    assert found["accuracy"] == pytest.approx(expected)
    assert "left_out" not in found
    assert "left out classes" not in told


def test_a_request_may_not_take_longer_than_the_site_allows() -> None:
    assert Policy(max_seconds=5.0).seconds(600.0) == 5.0
    assert Policy(max_seconds=5.0).seconds(None) == 5.0  # with the watchdog off
    assert Policy(max_seconds=5.0).seconds(2.0) == 2.0
    assert Policy().seconds(None) is None


def test_the_limits_of_site_yaml_hold_for_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the watchdog off, as `hello` has it."""
    timers, limits = list[float](), list[int]()
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: timers.append(seconds))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, found: limits.append(found[0]))
    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    assert hello(project(tmp_path, keys="max_seconds: 7\nmax_memory_mb: 900\n")).problem is None
    assert timers == [7.0]
    assert limits == [900 * 2**20, before]


MEMORY = """
import torch
from fedhead.flower.site.policy import Policy
from fedhead.flower.wire.site_errors import record

torch.ones(10).sum()
with Policy(max_memory_mb=2000).within_memory():
    try:
        torch.empty(10**9)
    except RuntimeError as error:
        print(record("north", error)[0])
print(len(torch.empty(10**9)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_request_may_not_have_more_memory_than_the_site_allows() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["memory", str(10**9)]


def test_a_bad_policy_is_named(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: a\ndata: x\nmin_class_count: 0\n")
    with pytest.raises(BadInput, match="min_class_count: 0 is out of range"):
        SiteFile.read(tmp_path / "site.yaml")


def test_a_recipe_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, checked = project(tmp_path), list[str]()
    honest = Policy.check
    monkeypatch.setattr(Policy, "check", lambda self, *given: (checked.append(self.name), honest(self, *given)))
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    serve(made.server(), grid, log=lambda line: None)
    assert sorted(checked) == ["north", "south"]
    assert len(factory.run_spec(made.server()).digest) == 64  # 256 bits: no two recipes of a server share the check
