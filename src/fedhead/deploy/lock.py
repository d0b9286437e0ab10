"""The supervisor of a deployment: one process at a time, known by its identity, and what a killed one left behind."""

from __future__ import annotations

import json
import os
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.core.system.process import ProcessIdentity
from fedhead.deploy import processes
from fedhead.deploy.project import Project

STATE, OWNER, SERVER = "state.json", "owner.json", "server.json"  # what runs, who watches over it, how the server is


def claim(project: Project) -> None:
    """Make this process the one that watches over a deployment, and end what a killed one has left.

    Raises:
        BadInput: If another process does.
    """
    other = owner(project)
    if other is not None:
        raise BadInput(
            f"{project.path} is up already, watched over by process {other.pid}: see fedhead deploy status, "
            "end it with fedhead deploy down"
        )
    end_leftovers(project)
    (project.private / SERVER).unlink(missing_ok=True)
    with atomic(project.private / OWNER) as draft:
        draft.write_text(json.dumps(vars(ProcessIdentity.of(os.getpid()))), encoding="utf-8")


def release(project: Project) -> None:
    """Give up the deployment, so that another process can claim it."""
    (project.private / OWNER).unlink(missing_ok=True)


def owner(project: Project) -> ProcessIdentity | None:
    """Return the process that supervises a deployment, or None."""
    path = project.private / OWNER
    found = ProcessIdentity.from_dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    return found if found is not None and found.alive() else None


def end_leftovers(project: Project) -> bool:
    """End all processes of a deployment.

    Returns:
        Whether there were any.
    """
    return processes.end(lambda: processes.marked(project.private))


def read_state(project: Project) -> dict[str, Any] | None:
    """Read the state file of a deployment; None if it was never started."""
    path = project.private / STATE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
