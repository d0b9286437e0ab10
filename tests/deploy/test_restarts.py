"""Restarts with real processes: again and again with TLS and keys, and killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import clinic_sites
import pytest
from deployments import (
    MARK,
    Supervised,
    assert_equals_simulation,
    assert_same,
    assert_undisturbed,
    command,
    end_marked,
    eventually,
    final,
    history,
    marked,
    rounds,
    site_log,
)

from fedhead.deploy import certificates, processes
from fedhead.deploy.project import Project
from fedhead.flower.server_run import serve
from fedhead.runs.run_folder import RunFolder

pytestmark = [pytest.mark.deploy, pytest.mark.drill, pytest.mark.timeout(3600)]
LONG = ["subset=240", "local_epochs=1", "rounds=500", "evaluate_every=500"]
RESTARTS = 20


def test_restarts_with_tls_equal_an_uninterrupted_simulation(tmp_path: Path) -> None:
    """SCAFFOLD's clients keep state at the sites, so that a round lost or repeated would change the result."""
    fedhead, folder = command(tmp_path), tmp_path / "demo"
    for words in (["init", str(folder), "--sites", "2", *LONG, "method=scaffold"], ["certs", str(folder)]):
        assert fedhead("deploy", *words).returncode == 0
    project = Project.open(folder)
    patient = project.server_file.read_text().replace("join_seconds: 120", "join_seconds: 600")  # on a busy machine
    project.server_file.write_text(patient)
    keys = {path.read_bytes() for path in (project.certs / "sites").iterdir()}
    for restart in range(RESTARTS + 1):
        run_a_round(["deploy", "up", str(folder)], restart > 0, project, tmp_path, signal.SIGTERM)
    reached = RunFolder.open(project.path / "run").checkpoint.round
    assert reached >= RESTARTS
    assert rounds(project) in (list(range(1, reached + 1)), list(range(1, reached + 2)))  # ended before its checkpoint
    assert_equals_simulation(project)
    assert {path.read_bytes() for path in (project.certs / "sites").iterdir()} == keys
    for site in project.server().sites:
        assert "problem" not in site_log(project, site)
    assert "already in use" not in (project.private / "link.log").read_text()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_nothing_trains_on_after_deploy_up_was_ended(how: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert command(tmp_path)("deploy", "init", str(folder), "--sites", "2", *LONG).returncode == 0
    words, project = ["deploy", "up", str(folder), "--insecure"], Project.open(folder)
    for resume in (False, True):
        run_a_round(words, resume, project, tmp_path, how)
    assert rounds(project) == list(range(1, len(rounds(project)) + 1))


def test_a_site_is_restarted_in_every_phase(tmp_path: Path) -> None:
    """Its node ends in the middle of a request, and another one has only its files."""
    words = ("method=scaffold", "stages=[finetune]")
    alone, grid = clinic_sites.project(tmp_path / "alone", *words)
    serve(alone.server(), grid, log=lambda line: None)
    project, _ = clinic_sites.project(tmp_path, *words)
    text = project.server_file.read_text().replace("quorum: 2", "quorum: 3")  # no round without it
    project.server_file.write_text(text.replace("join_seconds: 0.1 ", "join_seconds: 300 "))
    site = project.path / "sites" / "south"
    shutil.copy(Path(__file__).parents[1] / "support" / "restarting_site.py", site)
    text = (site / "site.yaml").read_text().replace('data: "../../../south.csv"', "data: restarting_site:load")
    (site / "site.yaml").write_text(text)
    certificates.write(project.certs, ["127.0.0.1"], list(project.sites()))
    told: list[str] = []
    Supervised(project, secure=True, log=told.append).run()
    phases = ["statistics", "hello", "work train", "test train", "work finetune", "test finetune"]
    assert (site / "restarts.txt").read_text().splitlines() == phases
    assert any(line.startswith("the node of south has ended") for line in told)
    assert_same(final(alone), final(project))
    assert not any("failed" in row or "absent" in row for row in history(project))
    assert_undisturbed(project, ["north", "east"])


def run_a_round(words: list[str], resume: bool, project: Project, folder: Path, how: signal.Signals) -> None:
    """Run a command until there is one more round, end it by a signal, and wait until none of its processes is left."""
    env = processes.environment(folder, **{MARK: str(folder)})
    with subprocess.Popen(["fedhead", *words, *(["--resume"] if resume else [])], env=env) as running:
        try:
            eventually(project.server_file.exists, project)
            done = len(rounds(project))
            eventually(lambda: running.poll() is not None or len(rounds(project)) > done, project)
            assert running.poll() is None, f"it has ended by itself after {done} rounds"
            assert len(marked(folder)) >= 6  # the command, link, two nodes, the server, a worker
        finally:
            running.send_signal(how)
    try:
        eventually(lambda: not marked(folder), project, 60.0)
    finally:
        end_marked(folder)
