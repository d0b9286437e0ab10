"""The supervisor: started by `fedhead deploy up` to keep a federation running, ended by `fedhead deploy down`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.system.process import ProcessIdentity, raising_on_term
from fedhead.deploy import certificates, processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.lock import STATE, end_leftovers, owner, read_state
from fedhead.deploy.project import Project
from fedhead.runs.run_folder import RunFolder

START_SECONDS = 240.0


def launch(project: Project, secure: bool, resume: bool) -> None:
    """Start the supervisor in the background and wait until the run has been submitted.

    Args:
        project: Folder of the deployment.
        secure: Whether to use TLS and authenticated nodes.
        resume: Whether to continue an interrupted run.

    Raises:
        BadInput: If the project is already running, or holds a run and `resume` is false.
        FedheadError: If the run does not start.
    """
    if owner(project) is not None:
        raise BadInput(f"{project.path} is up already: see fedhead deploy status, end it with fedhead deploy down")
    if not resume and _holds_run(project):
        raise BadInput(f"{project.server().at(project.server().out)} holds a run already: go on with --resume")
    if secure:
        certificates.check(project.certs, list(project.sites()))
    project.private.mkdir(parents=True, exist_ok=True)
    for name in (STATE, "server.log"):
        (project.private / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "fedhead.deploy.supervise", str(project.path)]
    command += ["--secure"] if secure else []
    command += ["--resume"] if resume else []
    process = processes.start(
        command,
        project.private / "supervisor.log",
        processes.environment(project.private),
        project.path,
        outlive=True,
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


def wait(project: Project, log: Callable[[str], None]) -> int:
    """Follow the server's log until the supervisor has ended.

    Returns:
        The exit code: 0 if the run finished.
    """
    shown, file = 0, project.private / "server.log"
    while True:
        running = owner(project) is not None
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines[shown:]:
            log(line)
        shown = len(lines)
        if not running:
            return 0 if (read_state(project) or {}).get("status") == "finished" else 1
        time.sleep(0.3)


def bring_down(project: Project) -> bool:
    """End everything that runs of a deployment, whatever command started it.

    Returns:
        Whether anything was running.
    """
    found = owner(project)
    if found is not None:
        processes.end(lambda: [found], seconds=60.0)  # it ends what it started, then exits
    left = end_leftovers(project)  # a process that was killed could not end what it had started
    return found is not None or left


def report(project: Project) -> dict[str, Any]:
    """Return what is running, as shown by `fedhead deploy status`."""
    state = read_state(project)
    if state is None:
        return {"status": "never started", "supervisor": False, "nodes": {}}
    file = project.private / "server.log"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    running = owner(project) is not None
    status = str(state["status"])
    return {
        "status": status if running or not status.startswith(("running", "starting")) else "down",
        "supervisor": running,
        "run": state["run"],
        "address": state["address"],
        "secure": state["secure"],
        "link": ProcessIdentity.from_dict(state["link"]).alive(),
        "nodes": {
            name: {"alive": ProcessIdentity.from_dict(entry).alive(), "starts": entry["starts"]}
            for name, entry in state["nodes"].items()
        },
        "last": lines[-1] if lines else None,
        "logs": str(project.private),
    }


def _holds_run(project: Project) -> bool:
    out = project.server().at(project.server().out)
    return RunFolder.holds_run(out)


def main(arguments: list[str]) -> int:
    """Run a federation until it ends or a SIGTERM arrives."""
    project = Project.open(arguments[0])

    def log(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    with raising_on_term(SystemExit(0)):
        return _run(project, "--secure" in arguments, "--resume" in arguments, log)


def _run(project: Project, secure: bool, resume: bool, log: Callable[[str], None]) -> int:
    federation: LocalFederation | None = None
    try:
        federation = LocalFederation(project, secure, resume, log)
        federation.up()
        federation.watch()
        log("the run has finished")
        return 0
    except (FedheadError, subprocess.SubprocessError, OSError) as error:
        log(f"error: {error}")
        if federation is not None:
            federation.status = f"failed: {error}"
        return 1
    finally:
        if federation is not None:
            federation.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
