"""Processes of a local federation: they end with whoever started them, and their server's status is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deployments import MARK, end_marked, marked

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.process import ProcessIdentity
from fedhead.deploy import processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.flower.server.server_status import ServerStatus

SLEEP = "sleep 1000"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"])
    project.private.mkdir()
    yield project
    end_marked(project.private)


def env(project: Project) -> dict[str, str]:
    return processes.environment(project.private, **{MARK: str(project.private)})


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
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
        eventually(lambda: len(marked(project.private)) == 2)
        parent.send_signal(how)
    eventually(lambda: not marked(project.private))


def test_children_are_stopped_and_those_that_do_not_listen_killed(project: Project) -> None:
    script = f"trap '' TERM; {SLEEP} & while true; do sleep 0.1; done"
    stubborn = processes.start(["bash", "-c", script], project.private / "log", env(project), project.path)
    eventually(lambda: len(marked(project.private)) >= 2)
    processes.stop([stubborn], seconds=0.5)
    assert stubborn.wait(60) == -signal.SIGKILL
    eventually(lambda: not marked(project.private))


def test_a_child_is_stopped_after_a_signal_interrupted_a_poll_of_it(project: Project) -> None:
    """`Popen.poll` leaves its lock locked if a signal's exception is raised between acquiring it and `try`."""
    child = processes.start(["sleep", "60"], project.path / "child.log", dict(os.environ), project.path)
    child._waitpid_lock.acquire()  # type: ignore[attr-defined]
    processes.stop([child], seconds=0.2)
    child._waitpid_lock.release()  # type: ignore[attr-defined]
    assert child.wait(60) in (-signal.SIGTERM, -signal.SIGKILL)  # killed if it ended late


def test_the_wait_for_the_nodes_is_announced(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    federation = LocalFederation(project, log=lines.append)
    monkeypatch.setattr(federation, "_start_link", lambda: lines.append("the link is ready"))
    monkeypatch.setattr(federation, "_start_node", lines.append)
    monkeypatch.setattr(federation, "_submit", lambda: lines.append("submitted"))
    federation.up()
    waiting = "the nodes of north, south and the run are starting: this takes about a minute"
    assert lines == ["the link is ready", waiting, "north", "south", "submitted"]
    federation.nodes = {}
    federation.close()


def test_one_process_at_a_time_runs_a_deployment(project: Project) -> None:
    """The lock is the process's own: it ends with it, however that ends."""
    program = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); "
        "time.sleep(1000)"
    )
    words = [sys.executable, "-c", program, str(project.private / "lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BadInput, match="is up already"):
            LocalFederation(project).run()
        other.kill()


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


@pytest.mark.parametrize(
    ("pid", "failure", "expected"),
    [(os.getpid(), None, None), (os.getpid(), "no quorum", "no quorum"), (2**22 + 1, None, "ended without a result")],
    ids=["running", "failed", "gone"],
)
def test_the_status_of_the_server_ends_the_run_and_its_log_does_not(
    project: Project, pid: int, failure: str | None, expected: str | None
) -> None:
    """A site's text that looks like the server's own last word is only a text."""
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if expected is None:
            (project.path / "run" / "result.json").touch()

    federation = LocalFederation(project, log=note)
    told = "12:00:00 site north: ValueError at the site, I/O error: on purpose"
    (project.private / "server.log").write_text(f"{told}\n")
    ServerStatus(ProcessIdentity.of(pid), failure).write(project.private / "server.json")
    (project.path / "run").mkdir()
    if expected is None:
        federation.watch()
    else:
        with pytest.raises(FedheadError, match=rf"{expected}.*--resume"):
            federation.watch()
    assert lines == [told]
    federation.close()
