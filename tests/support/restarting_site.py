"""A site that is restarted once in every phase: its data function has its node end in the middle of requests.

Copied beside a site.yaml; `data: restarting_site:load`. Phases that had their restart are in restarts.txt beside it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd

FOLDER = Path(__file__).parent
DONE = FOLDER / "restarts.txt"


def load() -> Any:
    from fedhead.flower.site import site as sites

    restart_once("statistics")  # the first request that reads the table
    honest = sites.Site.handle

    def handle(self: Any, request: Any, trees: Any) -> Any:
        handled = honest(self, request, trees)
        phase = request.kind if request.kind == "hello" else f"{request.kind} {request.algorithm}"
        if phase not in phases() and handled.commit is not None:
            handled.commit()  # its state is written, and its reply is lost
        restart_once(phase)
        return handled

    if not hasattr(sites, "restarts"):
        sites.restarts = True  # type: ignore[attr-defined]  # set once per process
        sites.Site.handle = handle  # type: ignore[method-assign]  # restarts after it
    return pd.read_csv(FOLDER.parents[2] / f"{FOLDER.name}.csv")


def phases() -> list[str]:
    """Return the phases that had their restart."""
    return DONE.read_text().splitlines() if DONE.exists() else []


def restart_once(phase: str) -> None:
    """End the node of this worker, unless it was ended in this phase before; its supervisor starts it again."""
    if phase not in phases():
        with DONE.open("a") as file:
            file.write(f"{phase}\n")
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)  # this worker ends with its node
