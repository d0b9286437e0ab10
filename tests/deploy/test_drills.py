"""Drills with TLS: parts of a real deployment are killed, impersonated or misbehave; the others go on.

Two deployments serve all of them. Each test looks at one fault: at what the other sites' logs, the server's record and
the final result have of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployments import Supervised, assert_equals_simulation, assert_undisturbed, history, missing, site_log
from faulty_site import PATIENT

from fedhead.core.system.errors import FedheadError
from fedhead.deploy import certificates, processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.deploy.registration import register
from fedhead.flower.site import site_data
from fedhead.recipes import recipe_data as recipe_data

pytestmark = [pytest.mark.deploy, pytest.mark.drill, pytest.mark.timeout(1200)]
SITES = ["north", "south", "west"]
SMALL = ["subset=240", "local_epochs=1", "partition=dirichlet(1.0)", "batch_size=16", "method=scaffold"]
FAULTS = {"1": "nan", "2": "shape", "3": "old", "4": "text", "5": "hang", "7": "die"}  # of west, by round
ROUND_SECONDS = 45


@dataclass
class Drill:
    """A deployment that has come to its end."""

    federation: LocalFederation
    told: list[str]  # lines logged by the federation

    @property
    def project(self) -> Project:
        return self.federation.project

    def reasons(self, site: str) -> dict[int, str]:
        """Why a site was not there or did not count, by round."""
        rows = history(self.project)
        return {row["round"]: missing(row)[site] for row in rows if site in missing(row)}

    def server_log(self) -> str:
        return (self.project.private / "server.log").read_text()


def secure(folder: Path, assignments: list[str], more: tuple[str, ...] = ()) -> Project:
    project = Project.init(folder / "demo", "digits", SITES, [*SMALL, *assignments])
    certificates.write(project.certs, ["127.0.0.1"], [*SITES, *more])
    return project


# -- sites that misbehave ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """West has a fault in most rounds, and an admitted node of another key calls itself north from the beginning."""
    folder = tmp_path_factory.mktemp("attacked")
    project = secure(folder, ["rounds=8", "evaluate_every=8"], ("mallory",))
    make_faulty(project, "west")
    text = project.server_file.read_text().replace("round_seconds: 600", f"round_seconds: {ROUND_SECONDS}")
    project.server_file.write_text(text)
    drill = Drill(LocalFederation(project, secure=True, log=lambda line: drill.told.append(line)), [])
    thief: list[subprocess.Popen[bytes]] = []
    try:
        drill.federation.up()
        thief.append(start_thief(drill.federation, folder))
        drill.federation.watch()
        yield drill
    finally:
        drill.federation.close()
        processes.stop(thief)


def make_faulty(project: Project, site: str) -> None:
    """Give a site the data of its share, and a program of faults."""
    folder = project.path / "sites" / site
    own = site_data.share(recipe_data.federation(project.server().recipe_of_run()), SITES.index(site))
    x, y = own.train.x.numpy(), own.train.y.numpy()
    np.savez(folder / "data.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    (folder / "faults.json").write_text(json.dumps(FAULTS))
    shutil.copy(Path(__file__).parents[1] / "support" / "faulty_site.py", folder / "faulty_site.py")
    text = (folder / "site.yaml").read_text().replace('data: "recipe"', "data: faulty_site:load")
    (folder / "site.yaml").write_text(text)


def start_thief(federation: LocalFederation, folder: Path) -> subprocess.Popen[bytes]:
    """A node that the link admits by its own key, with the settings of the site north."""
    address, certs = federation.address, federation.project.certs
    assert register(address, certs / "ca.crt", {"mallory": certs / "sites" / "mallory.pub"}) == ["mallory"]
    command = ["flower-supernode", "--superlink", address, "--port", str(processes.free_ports(1)[0])]
    command += ["--root-certificates", str(certs / "ca.crt")]
    command += ["--auth-supernode-private-key", str(certs / "sites" / "mallory")]
    command += ["--node-config", f'site="{federation.sites["north"].path}"']
    return processes.start(command, folder / "thief.log", federation.env, folder)


def test_a_stolen_name_gets_no_work(attacked: Drill) -> None:
    told = attacked.server_log()
    assert "it calls itself north, but its key is not the one that was registered for north" in told
    assert told.count("site north is here with") == 1
    thief = (attacked.project.path.parent / "thief.log").read_text()
    assert "query.hello" in thief
    assert "train.work" not in thief
    assert not attacked.reasons("north")


def test_a_hanging_site_is_left_out_of_its_round(attacked: Drill) -> None:
    assert re.search(r"no response within|Flower says", attacked.reasons("west")[5])
    row = next(row for row in history(attacked.project) if row["round"] == 5)
    assert row["participants"] == 2
    assert ROUND_SECONDS - 5 < row["seconds"] < ROUND_SECONDS + 60
    assert f"Timeout (0:00:{ROUND_SECONDS})!" in site_log(attacked.project, "west")  # the watchdog says where it hung
    assert 6 not in attacked.reasons("west")  # and the node is free for the next round


def test_nothing_of_a_site_s_error_text_reaches_the_server(attacked: Drill) -> None:
    reason = attacked.reasons("west")[4]
    reference = re.fullmatch(r".*an unexpected error \(error, reference (\w{8}) in the site's own log\)", reason)
    assert reference is not None, reason
    own = site_log(attacked.project, "west")
    assert f"problem {reference[1]} (error): I/O error: \x1b[2J" in own
    assert own.count(PATIENT) > 200_000
    places = [path for path in attacked.project.path.rglob("*") if path.is_file()]
    places = [
        path
        for path in places
        if path.name != "site-west.log" and "west" not in path.relative_to(attacked.project.path).parts
    ]
    assert {"link.db", "link.log", "server.log", "site-north.log", "metrics.jsonl"} <= {path.name for path in places}
    for path in places:
        held = path.read_bytes()
        assert PATIENT.encode() not in held, path
        assert b"I/O error" not in held, path
        assert b"\x1b[2J" not in held, path


def test_a_site_that_answers_nonsense_or_dies_is_left_out(attacked: Drill) -> None:
    reasons = attacked.reasons("west")
    for round_, expected in {1: "not finite", 2: "(9,)", 3: "it answered round 2"}.items():
        assert expected in reasons[round_]
    assert 7 in reasons
    assert 8 not in reasons  # a new worker


def test_the_others_go_on_to_the_same_result(attacked: Drill) -> None:
    assert [row["round"] for row in history(attacked.project)] == list(range(1, 9))
    assert_undisturbed(attacked.project, ["north", "south"])
    assert_equals_simulation(attacked.project)


# -- processes that are killed -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    """The node of south gets a SIGKILL after round 1, and the link one when south has been back for a round.

    The operator resumes the run after the second.
    """
    folder = tmp_path_factory.mktemp("killed")
    project = secure(folder, ["rounds=12", "evaluate_every=12"])
    patient = project.server_file.read_text().replace("join_seconds: 120", "join_seconds: 600")  # on a busy machine
    project.server_file.write_text(patient)
    struck: list[str] = []

    def log(line: str) -> None:
        drill.told.append(line)
        strike()

    drill = Drill(Supervised(project, secure=True, log=log), [])

    def kill(name: str, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        struck.append(name)
        os.killpg(process.pid, signal.SIGKILL)

    def strike() -> None:
        rows, federation = history(project), drill.federation
        if not rows:
            return
        if not struck:
            kill("node", federation.nodes["south"])
        back = drill.reasons("south") and not missing(rows[-1])
        if struck == ["node"] and back:
            drill.told.append(f"nodes: {nodes(project)}")
            assert_undisturbed(project, ["north", "west"])
            kill("link", federation.link)

    with pytest.raises(FedheadError, match=r"the SuperLink has ended with code -9.*--resume"):
        drill.federation.run()
    assert struck == ["node", "link"]
    LocalFederation(project, secure=True, resume=True, log=drill.told.append).run()
    return drill


def nodes(project: Project) -> list[Any]:
    """The nodes that the link's database knows, by their keys."""
    with closing(sqlite3.connect(project.private / "link.db")) as database:
        return sorted(database.execute("select node_id, public_key from node"))


def test_a_killed_node_is_missed_until_it_is_back(killed: Drill) -> None:
    missed = sorted(killed.reasons("south"))
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert missed[0] == 2
    assert missed[-1] < 12
    ended = [line for line in killed.told if line.startswith("the node of ")]
    assert [line.partition(":")[0] for line in ended] == ["the node of south has ended with code -9"]
    assert not killed.reasons("north")
    assert not killed.reasons("west")
    assert_equals_simulation(killed.project)


def test_a_killed_link_is_restored_from_its_database(killed: Drill) -> None:
    assert f"nodes: {nodes(killed.project)}" in killed.told  # the same nodes by the same keys: none registered again
    assert "going on after round" in killed.server_log()
    assert [row["round"] for row in history(killed.project)] == list(range(1, 13))
    after = [row for row in history(killed.project) if row["round"] > max(killed.reasons("south"))]
    assert not any(missing(row) for row in after)
    assert_equals_simulation(killed.project)


# -- clocks that are wrong -----------------------------------------------------------------------------
CLOCK = """import datetime, os, time
import flwr.supercore.date as flower
shift, real, honest = float(os.environ["SHIFT"]), time.time, flower.now
time.time = lambda: real() + shift
flower.now = lambda: honest() + datetime.timedelta(seconds=shift)
"""


class Skewed(LocalFederation):
    """Nodes with slow and fast clocks."""

    def _start_node(self, site: str) -> subprocess.Popen[bytes]:
        honest = self.env
        (self.private / "clock").mkdir(exist_ok=True)
        (self.private / "clock" / "sitecustomize.py").write_text(CLOCK)
        path = os.pathsep.join([str(self.private / "clock"), honest.get("PYTHONPATH", "")])
        self.env = {**honest, "PYTHONPATH": path, "SHIFT": {"north": "0", "south": "-250", "west": "600"}[site]}
        try:
            return super()._start_node(site)
        finally:
            self.env = honest


def test_a_slow_clock_is_no_problem_and_a_fast_one_is_refused(tmp_path: Path) -> None:
    """A clock that is four minutes slow is no problem; the link refuses a node whose clock is ten minutes fast."""
    project = secure(tmp_path, ["rounds=2"])
    project.server_file.write_text(project.server_file.read_text().replace("join_seconds: 120", "join_seconds: 60"))
    Skewed(project, secure=True, log=lambda line: None).run()
    assert [missing(row).keys() for row in history(project)] == [{"west"}] * 2
    assert_equals_simulation(project)
