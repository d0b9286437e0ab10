"""Processes end with whoever started them, and what a killed process left is found by the mark of its deployment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedhead.core.system.errors import BadInput
from fedhead.core.system.process import ProcessIdentity
from fedhead.deploy import local_run, lock, processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.deploy.superlink import SuperLink
from fedhead.flower.server.server_status import ServerStatus
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder

SLEEP = "sleep 1000"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project.init(tmp_path / "demo", "digits", ["north", "south"])
    made.private.mkdir()
    yield made
    lock.end_leftovers(made)


def env(project: Project) -> dict[str, str]:
    return processes.environment(project.private, **{processes.MARK: str(project.private)})


def eventually(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(how: signal.Signals, project: Project) -> None:
    program = (
        "import os, time, pathlib; from fedhead.deploy import processes; here = pathlib.Path(); "
        f"processes.start({SLEEP.split()}, here / 'log', os.environ, here); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=env(project), cwd=project.path) as parent:
        eventually(lambda: len(processes.marked(project.private)) == 2)
        parent.send_signal(how)
    eventually(lambda: not processes.marked(project.private), 5.0)


def test_one_that_shall_outlive_its_parent_does(project: Project) -> None:
    program = (
        "import os, pathlib; from fedhead.deploy import processes; here = pathlib.Path(); "
        f"processes.start({SLEEP.split()}, here / 'log', os.environ, here, outlive=True)"
    )
    subprocess.run([sys.executable, "-c", program], env=env(project), cwd=project.path, check=True)
    assert len(processes.marked(project.private)) == 1


def test_leftovers_are_found_and_ended_whoever_their_parent_is(project: Project) -> None:
    """A grandchild in another session, whose parents have gone, and one that does not listen to requests."""
    script = f"setsid {SLEEP} & (trap '' TERM; while true; do sleep 0.1; done) & exit 0"
    subprocess.run(["bash", "-c", script], env=env(project), check=True)
    other = subprocess.Popen(SLEEP.split())  # of no deployment
    try:
        eventually(lambda: len(processes.marked(project.private)) >= 2)
        assert processes.end(lambda: processes.marked(project.private), seconds=0.5)
        assert not processes.marked(project.private)
        assert not lock.end_leftovers(project)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_one_process_at_a_time_watches_over_a_deployment(project: Project) -> None:
    with subprocess.Popen(SLEEP.split()) as other:
        mark = ProcessIdentity.of(other.pid)
        (project.private / lock.OWNER).write_text(f'{{"pid": {mark.pid}, "started": "{mark.started}"}}')
        with pytest.raises(BadInput, match=rf"is up already, watched over by process {other.pid}.*deploy down"):
            lock.claim(project)
        other.kill()
    left = subprocess.Popen(SLEEP.split(), env=env(project))  # what that process could not end
    lock.claim(project)
    assert left.wait(5) == -signal.SIGTERM
    assert lock.owner(project) == ProcessIdentity.of(os.getpid())
    lock.release(project)
    assert lock.owner(project) is None


def test_a_request_to_terminate_runs_finally_blocks(tmp_path: Path) -> None:
    program = (
        "import os, signal; from fedhead.core.system.process import raising_on_term\n"
        "with raising_on_term(SystemExit(7)):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n        os.kill(os.getpid(), signal.SIGTERM); print('ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=processes.environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "ended\n")


def test_what_stands_in_a_log_ends_nothing(project: Project) -> None:
    """A site's text that looks like the server's own last word is only a text."""
    federation = LocalFederation(project)
    federation.run_id = "17"
    (project.private / "server.log").write_text("12:00:00 site north: ValueError at the site, I/O error: on purpose\n")
    here = ProcessIdentity.of(os.getpid())
    ServerStatus("17", here).write(project.private / lock.SERVER)
    assert federation._server_failure() is None
    ServerStatus("16", here, "of an earlier run").write(project.private / lock.SERVER)
    assert federation._server_failure() is None
    ServerStatus("17", here, "no quorum").write(project.private / lock.SERVER)
    assert federation._server_failure() == "no quorum"


def test_a_server_that_is_gone_without_a_word_is_asked_for_and_resumed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def flwr(self: SuperLink, *words: str) -> dict[str, object]:
        asked.append(words)
        ended = {"runs": [{"status": "finished:failed"}]}
        return ended if words[0] == "ls" else {"success": True, "run-id": str(len(asked))}

    monkeypatch.setattr(SuperLink, "flwr", flwr)
    monkeypatch.setattr("fedhead.deploy.local_federation.ASK_SECONDS", 0.0)
    federation = LocalFederation(project, log=lambda line: None)
    federation.run_id = "17"
    ServerStatus("17", ProcessIdentity(2**22 + 1, "0")).write(project.private / lock.SERVER)
    reasons = [federation._server_failure() for _ in range(6)]
    assert reasons[:5] == [None] * 5  # resumed, and again, as each of these servers is gone too
    assert "Flower ended the run (finished:failed)" in str(reasons[5])
    assert [words[0] for words in asked] == ["ls", "run"] * 5 + ["ls"]


def test_rounds_are_not_added_over_flower(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", Recipe(rounds=2))
    with pytest.raises(BadInput, match=r"simulations only.*rounds=2"):
        local_run.execute(Recipe(rounds=3), tmp_path / "run", resume=True)
