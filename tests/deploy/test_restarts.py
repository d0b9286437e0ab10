"""Restarts with real processes: twenty times in a row with TLS and keys, and by each of the other ways."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from deployments import assert_equals_simulation, command, eventually, rounds, site_log

from fedhead.deploy import processes, supervise
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.lock import read_state
from fedhead.deploy.project import Project
from fedhead.runs.run_folder import RunFolder

pytestmark = [pytest.mark.deploy, pytest.mark.drill, pytest.mark.timeout(3600)]
LONG = ["subset=240", "local_epochs=1", "rounds=500", "evaluate_every=500"]
RESTARTS = 20


def test_twenty_restarts_with_tls_equal_an_uninterrupted_simulation(tmp_path: Path) -> None:
    """SCAFFOLD's clients keep state at the sites, so that a round lost or repeated would change the result."""
    fedhead, folder = command(tmp_path), tmp_path / "demo"
    for words in (["init", str(folder), "--sites", "2", *LONG, "method=scaffold"], ["certs", str(folder)]):
        assert fedhead("deploy", *words).returncode == 0
    project = Project.open(folder)
    patient = project.server_file.read_text().replace("join_seconds: 120", "join_seconds: 600")  # on a busy machine
    project.server_file.write_text(patient)
    keys = {path.read_bytes() for path in (project.certs / "sites").iterdir()}
    try:
        for restart in range(RESTARTS + 1):
            up = fedhead("deploy", "up", str(folder), *(["--resume"] if restart else []))
            assert up.returncode == 0, f"restart {restart}: {up.stderr}"
            before = len(rounds(project))
            eventually(lambda before=before: len(rounds(project)) > before, project)  # type: ignore[misc]
            assert "everything has ended" in fedhead("deploy", "down", str(folder)).stdout
    finally:
        supervise.bring_down(project)
    reached = RunFolder.open(project.path / "run").checkpoint_round()
    assert reached >= RESTARTS
    assert rounds(project) in (list(range(1, reached + 1)), list(range(1, reached + 2)))  # ended before its checkpoint
    assert_equals_simulation(project)
    assert {path.read_bytes() for path in (project.certs / "sites").iterdir()} == keys
    for site in project.server().sites:
        assert "problem" not in site_log(project, site)
    assert "already in use" not in (project.private / "link.log").read_text()


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
