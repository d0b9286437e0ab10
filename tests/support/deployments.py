"""Helpers for tests of real deployments: run folders, processes, and simulations to compare with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from partial import Partial

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.treefile import load_tree
from fedhead.deploy import processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import train_round
from fedhead.recipes.experiment import prepare
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT

MARK = "FEDHEAD_TEST_DEPLOYMENT"  # in the environment of every process that a test starts, with its folder


class Supervised(LocalFederation):
    """Nodes that are started again, as by systemd; Flower refuses a killed node for a minute."""

    def _check_nodes(self) -> None:
        super()._check_nodes()
        ended = [site for site, process in self.nodes.items() if process.poll() is not None]
        for site in ended:
            time.sleep(1.0)
            self.nodes[site] = self._start_node(site)


def marked(folder: Path) -> list[int]:
    """The running processes whose environment has a test's mark, whoever their parents are by now."""
    mark, found = f"{MARK}={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found  # an ended process has no environment


def end_marked(folder: Path) -> None:
    """End all processes with a test's mark, by force after ten seconds."""
    deadline = time.monotonic() + 10.0
    while pids := marked(folder):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.2)


def command(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line, with Flower's home in a folder."""
    env = processes.environment(folder)

    def fedhead(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["fedhead", *words], env=env, capture_output=True, text=True, check=False)

    return fedhead


def history(project: Project) -> list[dict[str, Any]]:
    """The records of the rounds so far."""
    path = project.server().at(project.server().out) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rounds(project: Project) -> list[int]:
    """The numbers of the rounds so far."""
    return [row["round"] for row in history(project)]


def missing(row: dict[str, Any]) -> dict[str, str]:
    """Why sites did not take part in a round, or did not count."""
    return {**row.get("failed", {}), **row.get("absent", {})}


def final(project: Project) -> Tree:
    """The server's state in the checkpoint."""
    return load_tree(project.path / "run" / CHECKPOINT)[0]["server"]  # type: ignore[no-any-return]


def replayed(project: Project) -> Tree:
    """The server's state of a simulation in which exactly those clients reply that replied in the deployment.

    It goes as far as the deployment's checkpoint.
    """
    torch.set_num_threads(1)
    recipe, sites = project.server().recipe_of_run(), project.server().sites
    simulation = Partial(*prepare(recipe), Compute(device="cpu", executor="loop"))
    reached = RunFolder.open(project.path / "run").checkpoint.round
    for row in history(project)[:reached]:
        simulation.absent = {sites.index(name) for name in missing(row)}
        train_round(simulation, row["round"])
    return simulation.server


def assert_same(a: Tree, b: Tree, tolerance: float = 1e-6) -> None:
    """Two trees have the same names and numbers."""
    assert a.leaves().keys() == b.leaves().keys()
    for name, t in a.leaves().items():
        torch.testing.assert_close(t, b.leaves()[name], atol=tolerance, rtol=tolerance)


def assert_equals_simulation(project: Project) -> None:
    """The checkpoint holds what `replayed` gives."""
    assert_same(replayed(project), final(project))


def eventually(true: Callable[[], Any], project: Project, seconds: float = 600.0) -> None:
    """Wait until something holds; fails with the server's log."""
    deadline = time.monotonic() + seconds
    while not true():
        log = project.private / "server.log"
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "the server wrote no log"
        time.sleep(0.1)


def site_log(project: Project, site: str) -> str:
    """Return the output of a site's node and worker."""
    return (project.private / f"site-{site}.log").read_text()


def assert_undisturbed(project: Project, sites: Sequence[str]) -> None:
    """Check that no round lacked one of these sites and that their logs show no problem and no error in fedhead.

    Flower's own tracebacks are allowed: it restarts a worker that was slow to start, as on a busy machine.
    """
    for site in sites:
        assert not any(site in missing(row) for row in history(project)), site
        told = site_log(project, site)
        assert "problem" not in told, told[-5000:]
        assert not re.search(r'File ".*/(src|site-packages)/fedhead/', told), told[-5000:]
