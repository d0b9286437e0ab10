"""The guide, followed literally in a fresh folder: every `sh` block of docs/deployment.md is run as it stands."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from deployments import MARK, end_marked

from fedhead.core.tree.treefile import load_tree
from fedhead.deploy import processes
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.recipes.experiment import prepare
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT

GUIDE = Path(__file__).parents[2] / "docs" / "deployment.md"
SECTIONS = {
    "On one machine, to try it out": ["demo/run", "safe/run"],
    "Every site on its own machine": ["clinic/run"],
}


def blocks(section: str) -> list[str]:
    """The section's shell blocks, in order, with ports that are free here."""
    text = GUIDE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    ports = sorted(set(re.findall(r"\b(?:80|91)\d\d\b", "".join(found))))
    for port, free in zip(ports, processes.free_ports(len(ports)), strict=True):
        found = [re.sub(rf"\b{port}\b", str(free), block) for block in found]
    return found


def test_the_guide_has_these_sections() -> None:
    assert [len(blocks(section)) for section in SECTIONS] == [3, 7]


@pytest.fixture
def background(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    end_marked(tmp_path)
    for process in started:
        process.wait()


@pytest.mark.deploy
@pytest.mark.drill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("section", SECTIONS)
def test_the_guide_works(section: str, tmp_path: Path, background: list[subprocess.Popen[bytes]]) -> None:
    env, first = processes.environment(tmp_path / "flwr", **{MARK: str(tmp_path)}), ""
    for number, block in enumerate(blocks(section)):
        if block.startswith("# everywhere"):
            first = block
        elif block.startswith("# stays running"):
            log = tmp_path / f"background-{number}.log"
            background.append(processes.start(["bash", "-euc", first + block], log, env, tmp_path))
            if "superlink " in block and (port := re.search(r"superlink.* --port (\d+)", block, flags=re.DOTALL)):
                _wait_for(int(port[1]), log)
        else:
            done = subprocess.run(
                ["bash", "-euc", first + block], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    for folder in SECTIONS[section]:
        assert RunFolder.open(tmp_path / folder).finished, folder
        _equals_simulation(tmp_path / folder)


def _wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def _equals_simulation(folder: Path) -> None:
    torch.set_num_threads(1)
    recipe = RunFolder.open(folder).recipe
    simulation = Simulation(*prepare(recipe), Compute(device="cpu", executor="loop"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert "failed" not in row
        train_round(simulation, row["round"])
    stored = load_tree(folder / CHECKPOINT)[0]["server"].leaves()
    for name, t in simulation.server.leaves().items():
        torch.testing.assert_close(t, stored[name], atol=1e-6, rtol=1e-6)
