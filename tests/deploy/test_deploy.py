"""Real processes on loopback: a SuperLink, SuperNodes and the run, with TLS, with faults, and equal to simulation."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import listen
from deployments import (
    MARK,
    assert_equals_simulation,
    assert_same,
    assert_undisturbed,
    command,
    eventually,
    final,
    history,
    marked,
    rounds,
)

from fedhead.core.tree.treefile import load_tree
from fedhead.deploy import certificates, processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
SMALL = ["subset=240", "local_epochs=1", "partition=dirichlet(1.0)", "batch_size=16"]
SITES = ["north", "south", "west"]


def test_tls_and_keys_equal_simulation_and_strangers_are_refused(tmp_path: Path) -> None:
    project = Project.init(
        tmp_path / "demo", "digits", SITES, [*SMALL, "rounds=1", "stages=[ccvr]", "stage.ccvr.epochs=1"]
    )
    certificates.write(project.certs, ["127.0.0.1"], SITES)
    begin = time.monotonic()
    federation = LocalFederation(project, secure=True)
    unknown_nodes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        federation.up()
        unknown_nodes = _strangers(federation, tmp_path)
        federation.watch()
        print(f"TLS deployment: {time.monotonic() - begin:.1f} s from start to result")
        for name, process in unknown_nodes.items():
            _refused(name, process, tmp_path)
    finally:
        federation.close()
        processes.stop(list(unknown_nodes.values()), seconds=2.0)
    assert_equals_simulation(project)
    assert_undisturbed(project, SITES)
    outcome = json.loads((project.path / "run" / "result.json").read_text())
    assert outcome["stages"].keys() == {"ccvr"}
    told = (project.private / "server.log").read_text()
    assert told.count(" is here with ") == 3
    assert not re.search(r"left out(?! classes)", told)  # small classes are, by the sites' policy


@pytest.mark.drill
def test_one_round_over_tls_gives_the_heads_of_a_simulation(tmp_path: Path) -> None:
    """Heads in closed form, personal ones among them, without any round: nothing but one message each way."""
    # no class is so small at a site that the site's policy would leave it out
    given = ["subset=900", "partition=iid", "rounds=0", "client_test=0.2", "stages=[ridge, personal_lda]"]
    project = Project.init(tmp_path / "demo", "digits", SITES, given)
    certificates.write(project.certs, ["127.0.0.1"], SITES)
    begin = time.monotonic()
    LocalFederation(project, secure=True).run()
    print(f"one round over TLS: {time.monotonic() - begin:.1f} s from start to result")
    outcome = json.loads((project.path / "run" / "result.json").read_text())
    told = (project.private / "server.log").read_text()
    assert told.count(" is here with ") == 3, told  # a site that is late would be missing in the sums
    assert "does not count" not in told, told
    alone = execute(project.server().recipe_of_run(), tmp_path / "alone", Compute())
    for name in ("ridge", "personal_lda"):
        assert "left_out" not in outcome["stages"][name]
        for value in ("accuracy", "personal"):
            assert outcome["stages"][name][value] == pytest.approx(alone["stages"][name][value])
    assert outcome["stages"]["personal_lda"]["personal"] is not None


def _strangers(federation: LocalFederation, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """Nodes that must not get in: of an unknown key, of no key, without TLS, and one that trusts another authority."""
    other = folder / "other"
    certificates.write(other, ["127.0.0.1"], ["mallory"])
    ours, theirs = str(federation.project.certs / "ca.crt"), str(other / "ca.crt")
    key = ["--auth-supernode-private-key", str(other / "sites" / "mallory")]
    ports = processes.free_ports(4)
    ways = {
        "unknown-key": ["--root-certificates", ours, *key],
        "no-key": ["--root-certificates", ours],
        "plain-text": ["--insecure"],
        "other-authority": ["--root-certificates", theirs, *key],
    }
    command = ["flower-supernode", "--superlink", federation.address, "--max-retries", "1"]
    command += ["--node-config", f'site="{federation.sites["north"].path}"']
    return {
        name: processes.start(
            [*command, "--port", str(port), *way],
            folder / f"{name}.log",
            federation.env,
            folder,
        )
        for (name, way), port in zip(ways.items(), ports, strict=True)
    }


def _refused(name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    code = process.wait(timeout=120)
    log = (folder / f"{name}.log").read_text()
    assert code != 0, log
    assert "Receiving" not in log, log  # no message ever reached it


@pytest.mark.drill
def test_a_large_model_and_its_statistics_go_through(tmp_path: Path) -> None:
    """45 MB of weights both ways, and 10 x 512 x 512 statistics up."""
    assignments = [*SMALL, "rounds=1", "model=mlp", "model.hidden=[4864, 2048, 512]", "stages=[ccvr]"]
    assignments += ["stage.ccvr.epochs=1", "stage.ccvr.samples=10"]
    project = Project.init(tmp_path / "demo", "digits", SITES[:2], assignments)
    LocalFederation(project).run()
    outcome = json.loads((project.path / "run" / "result.json").read_text())
    assert final(project)["model"].nbytes > 45e6
    assert outcome["stages"]["ccvr"]["bytes_up"] >= 2 * 10 * 512 * 512 * 4
    assert not any("failed" in row for row in history(project))


@pytest.mark.drill
def test_the_same_recipe_by_the_command_line(tmp_path: Path) -> None:
    """`fedhead deploy up` leaves what a simulation leaves, to 1e-6."""
    fedhead, project, out = command(tmp_path), Project(tmp_path / "demo"), tmp_path / "simulation"
    words = [*SMALL, "rounds=2", "client_test=0.3", "method=fedetf"]
    words += ["stages=[finetune_etf]", "stage.finetune_etf.iterations=1"]
    for command_words in (
        ["deploy", "init", str(project.path), "--sites", "2", *words],
        ["deploy", "up", str(project.path), "--insecure"],
        ["run", "digits", "clients=2", *words, "--executor", "loop", "--out", str(out), "--quiet"],
    ):
        done = fedhead(*command_words)
        assert done.returncode == 0, done.stderr
    folders = (project.path / "run", out)
    results = [RunFolder.open(folder).result() or {} for folder in folders]
    assert_same(*(load_tree(folder / CHECKPOINT)[0]["server"] for folder in folders))
    for name in ("accuracy", "personal", "clients", "bytes_up", "bytes_down", "per_class"):
        assert results[0][name] == pytest.approx(results[1][name], abs=1e-6), name
    reached = [result["stages"]["finetune_etf"]["personal"] for result in results]
    assert reached[0] == pytest.approx(reached[1], abs=1e-6)
    kept = {path.name for path in (project.path / "sites").rglob("model-*")}
    assert kept == {"model-finetune_etf.safetensors"}  # the personal models are at the sites


@pytest.mark.drill
def test_up_runs_until_it_is_interrupted_and_refuses_a_second_one(tmp_path: Path) -> None:
    env = processes.environment(tmp_path, **{MARK: str(tmp_path)})
    folder = str(tmp_path / "demo")

    def fedhead(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["fedhead", "deploy", *words], env=env, capture_output=True, text=True, check=False)

    assert fedhead("init", folder, "rounds=500", "subset=240").returncode == 0
    assert fedhead("up", folder).returncode == 2  # no certificates yet
    assert fedhead("up", str(tmp_path)).returncode == 2  # no deployment
    project = Project.open(folder)
    command = ["fedhead", "deploy", "up", folder, "--insecure"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, preexec_fn=listen) as up:
        try:
            eventually(lambda: len(rounds(project)) > 0, project)
            again = fedhead("up", folder, "--insecure", "--resume")
            assert again.returncode == 2
            assert "is up already" in again.stderr
        finally:
            up.send_signal(signal.SIGINT)
            _, told = up.communicate(timeout=60)
    assert up.returncode == 130
    assert b"deploy up" in told
    assert b"--resume" in told
    eventually(lambda: not marked(tmp_path), project, 30.0)
