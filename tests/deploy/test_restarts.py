"""Restarts with real processes: with TLS and keys, and twenty times in a row by each of the three ways."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedhead.deploy import certificates, processes, supervise
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.ownership import read_state
from fedhead.deploy.project import Project
from fedhead.deploy.registration import register

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]
LONG = ["subset=240", "local_epochs=1", "rounds=500", "evaluate_every=500"]
RESTARTS = 20


def command(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    env = processes.environment(folder)

    def fedhead(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["fedhead", *words], env=env, capture_output=True, text=True, check=False)

    return fedhead


def rounds(project: Project) -> list[int]:
    path = project.server().at(project.server().out) / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().splitlines()] if path.exists() else []


def eventually(true: Callable[[], Any], project: Project, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        log = project.private / "server.log"
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "the server wrote no log"
        time.sleep(0.1)


@pytest.mark.drill
def test_init_certs_up_down_up_resume(tmp_path: Path) -> None:
    """The keys of the sites are known to the link already when it is started again from its database."""
    fedhead, folder = command(tmp_path), tmp_path / "demo"
    for words in (["init", str(folder), "--sites", "2", *LONG], ["certs", str(folder)]):
        assert fedhead("deploy", *words).returncode == 0
    project = Project.open(folder)
    try:
        for more in ([], ["--resume"]):
            up = fedhead("deploy", "up", str(folder), *more)
            assert up.returncode == 0, up.stderr
            before = len(rounds(project))
            eventually(lambda before=before: len(rounds(project)) > before, project)  # type: ignore[misc]
            assert "everything has ended" in fedhead("deploy", "down", str(folder)).stdout
    finally:
        supervise.bring_down(project)
    assert rounds(project) == list(range(1, len(rounds(project)) + 1))


@pytest.mark.drill
def test_twenty_times_up_resume(tmp_path: Path) -> None:
    fedhead, folder = command(tmp_path), tmp_path / "demo"
    assert fedhead("deploy", "init", str(folder), "--sites", "2", *LONG).returncode == 0
    project = Project.open(folder)
    try:
        for time_ in range(RESTARTS + 1):
            up = fedhead("deploy", "up", str(folder), "--insecure", *(["--resume"] if time_ else []))
            assert up.returncode == 0, f"restart {time_}: {up.stderr}"
            if time_ in (0, RESTARTS):
                before = len(rounds(project))
                eventually(lambda before=before: len(rounds(project)) > before, project)  # type: ignore[misc]
            assert "everything has ended" in fedhead("deploy", "down", str(folder)).stdout
    finally:
        supervise.bring_down(project)
    assert rounds(project) == list(range(1, len(rounds(project)) + 1))


@pytest.mark.drill
def test_the_supervisor_resumes_twenty_times_by_itself(tmp_path: Path) -> None:
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], [*LONG[:-2], "rounds=21"])
    federation, seen = LocalFederation(project), 0

    def strike() -> None:
        nonlocal seen
        done = len(rounds(project))
        if seen < done and federation.resumes < RESTARTS and federation.link.process is not None:
            seen = done
            os.killpg(federation.link.process.pid, signal.SIGKILL)

    try:
        federation.up()
        federation.watch(strike)
    finally:
        federation.close()
    assert federation.resumes >= RESTARTS
    assert rounds(project) == list(range(1, 22))


@pytest.mark.drill
def test_twenty_times_run_transport_flower_resume(tmp_path: Path) -> None:
    out, env = tmp_path / "mine", processes.environment(tmp_path)
    words = ["fedhead", "run", "digits", "clients=2", *LONG, "--transport", "flower", "--out", str(out), "--quiet"]
    project = Project(out.with_name("mine.flower"))
    for time_ in range(RESTARTS + 1):
        with subprocess.Popen([*words, *(["--resume"] if time_ else [])], env=env) as running:
            try:
                before = (read_state(project) or {}).get("run") if time_ else None
                eventually(
                    lambda before=before, running=running: (  # type: ignore[misc]
                        running.poll() is not None or (read_state(project) or {}).get("run") not in (None, before)
                    ),
                    project,
                )
                if time_ in (0, RESTARTS):
                    done = len(rounds(project))
                    eventually(lambda done=done: len(rounds(project)) > done, project)  # type: ignore[misc]
                assert running.poll() is None, f"restart {time_} has ended by itself"
            finally:
                running.send_signal(signal.SIGTERM)
                running.wait(60)
    assert rounds(project) == list(range(1, len(rounds(project)) + 1))


@pytest.mark.drill
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_nothing_trains_on_after_run_transport_flower_was_ended(how: signal.Signals, tmp_path: Path) -> None:
    out, env = tmp_path / "mine", processes.environment(tmp_path)
    words = ["fedhead", "run", "digits", "clients=2", *LONG, "--transport", "flower", "--out", str(out), "--quiet"]
    project = Project(out.with_name("mine.flower"))
    for more in ([], ["--resume"]):
        with subprocess.Popen([*words, *more], env=env) as running:
            try:
                eventually(project.server_file.exists, project)
                done = len(rounds(project))
                eventually(lambda done=done: len(rounds(project)) > done, project)  # type: ignore[misc]
                assert len(processes.marked(project.private)) >= 5  # link, two nodes, the server, a worker
            finally:
                running.send_signal(how)
        eventually(lambda: not processes.marked(project.private), project, 60.0)
    assert not supervise.bring_down(project)


@pytest.mark.drill
def test_a_stolen_name_gets_no_work(tmp_path: Path) -> None:
    """A node that the link admits by its own key uses another site's name; that site goes on, before and after."""
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], LONG)
    certificates.write(project.certs, ["127.0.0.1"], ["north", "south", "mallory"])
    federation, thief = LocalFederation(project, secure=True), None
    try:
        federation.up()
        address, authority = f"127.0.0.1:{federation.link.port}", project.certs / "ca.crt"
        assert register(address, authority, {"mallory": project.certs / "sites" / "mallory.pub"}) == ["mallory"]
        command = ["flower-supernode", "--superlink", address, "--port", str(processes.free_ports(1)[0])]
        command += ["--root-certificates", str(authority)]
        command += ["--auth-supernode-private-key", str(project.certs / "sites" / "mallory")]
        command += ["--node-config", f'site="{federation.sites["north"].path}"']
        thief = processes.start(command, tmp_path / "thief.log", federation.env, tmp_path)
        log = project.private / "server.log"
        refusal = "it calls itself north, but its key is not the one that was registered for north"
        eventually(lambda: log.exists() and refusal in log.read_text(), project)
        done = len(rounds(project))
        eventually(lambda: len(rounds(project)) > done, project)
    finally:
        federation.close()
        if thief is not None:
            thief.wait()
    assert log.read_text().count("site north is here with") == 1
    rows = [json.loads(line) for line in (project.path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not any("failed" in row for row in rows)
    assert "train.work" not in (tmp_path / "thief.log").read_text()
