"""The supervisor: `fedhead deploy up` leaves it behind to keep a federation running, `down` ends it and all else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.process import ProcessIdentity
from fedhead.core.treefile import atomic
from fedhead.deploy import certificates, processes
from fedhead.deploy.local_federation import LocalFederation, read_state
from fedhead.deploy.project import Project

MARK = "supervisor.json"
START_SECONDS = 240.0


def launch(project: Project, secure: bool, resume: bool) -> None:
    """Start the supervisor in the background and wait until the run has been handed to the link."""
    if supervisor(project) is not None:
        raise BadInput(f"{project.path} is up already: see fedhead deploy status, end it with fedhead deploy down")
    if not resume and _holds_run(project):
        raise BadInput(f"{project.server().at(project.server().out)} holds a run already: go on with --resume")
    if secure:
        certificates.check(project.certs, list(project.sites()))
    bring_down(project)  # what a supervisor that was killed has left
    project.private.mkdir(parents=True, exist_ok=True)
    for name in ("state.json", "server.log"):
        (project.private / name).unlink(missing_ok=True)
    words = [sys.executable, "-m", "fedhead.deploy.supervise", str(project.path)]
    words += ["--secure"] if secure else []
    words += ["--resume"] if resume else []
    process = processes.start(
        words, project.private / "supervisor.log", processes.environment(project.private), project.path
    )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        state = read_state(project) or {}
        if str(state.get("status", "")).startswith("failed"):
            raise FedheadError(str(state["status"]).partition(": ")[2])
        if state.get("status") in ("running", "finished"):
            return
        if process.poll() is not None:
            raise FedheadError(f"the supervisor has ended: see {project.private / 'supervisor.log'}")
        time.sleep(0.2)
    raise FedheadError(f"nothing runs after {START_SECONDS:g} s: see the logs in {project.private}")


def wait(project: Project, say: Callable[[str], None]) -> int:
    """Follow the server's log until the supervisor has ended; the exit code says whether the run finished."""
    told, log = 0, project.private / "server.log"
    while True:
        running = supervisor(project) is not None
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        for line in lines[told:]:
            say(line)
        told = len(lines)
        if not running:
            return 0 if (read_state(project) or {}).get("status") == "finished" else 1
        time.sleep(0.3)


def supervisor(project: Project) -> ProcessIdentity | None:
    """The supervisor's process, if it runs."""
    path = project.private / MARK
    mark = ProcessIdentity.read(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    return mark if mark is not None and mark.alive() else None


def bring_down(project: Project) -> bool:
    """End the supervisor and whatever it started; says whether anything ran."""
    found = supervisor(project)
    if found is not None:
        os.kill(found.pid, signal.SIGTERM)  # it ends what it started, then itself
        deadline = time.monotonic() + 60.0
        while found.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        found.end()
    state = read_state(project) or {}
    left = [ProcessIdentity.read(entry) for entry in [*state.get("nodes", {}).values(), state.get("link")] if entry]
    alive = [mark for mark in left if mark.alive()]
    for mark in alive:  # a supervisor that was killed could not end them
        mark.end()
    return found is not None or bool(alive)


def report(project: Project) -> dict[str, Any]:
    """What runs now, as `fedhead deploy status` shows it."""
    state = read_state(project)
    if state is None:
        return {"status": "never started", "supervisor": False, "nodes": {}}
    log = project.private / "server.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    running = supervisor(project) is not None
    status = str(state["status"])
    return {
        "status": status if running or not status.startswith(("running", "starting")) else "down",
        "supervisor": running,
        "run": state["run"],
        "address": state["address"],
        "secure": state["secure"],
        "link": ProcessIdentity.read(state["link"]).alive(),
        "nodes": {
            name: {"alive": ProcessIdentity.read(entry).alive(), "starts": entry["starts"]}
            for name, entry in state["nodes"].items()
        },
        "last": lines[-1] if lines else None,
        "logs": str(project.private),
    }


def _holds_run(project: Project) -> bool:
    out = project.server().at(project.server().out)
    return out.exists() and any(out.iterdir())


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    """Run a federation to its end, or until told to leave."""
    signal.signal(signal.SIGTERM, _leave)
    project = Project.open(arguments[0])
    with atomic(project.private / MARK) as draft:
        draft.write_text(json.dumps(vars(ProcessIdentity.of(os.getpid()))), encoding="utf-8")

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    federation: LocalFederation | None = None
    try:
        federation = LocalFederation(project, "--secure" in arguments, "--resume" in arguments, say)
        federation.up()
        federation.watch()
        say("the run has finished")
        return 0
    except (FedheadError, subprocess.SubprocessError, OSError) as error:
        say(f"error: {error}")
        if federation is not None:
            federation.status = f"failed: {error}"
        return 1
    finally:
        if federation is not None:
            federation.close()
        (project.private / MARK).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
