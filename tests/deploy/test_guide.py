"""The guides, followed literally in a fresh folder: every `sh` block of the two pages is run as it stands."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from deployments import MARK, end_marked

import fedhead as fh
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


HOSPITALS = GUIDE.with_name("three_hospitals.md")


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


@pytest.mark.deploy
@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_three_hospitals_from_tables_to_a_model(tmp_path: Path, background: list[subprocess.Popen[bytes]]) -> None:
    shutil.copy(GUIDE.parents[1] / "examples" / "hospitals.py", tmp_path)
    env, told = processes.environment(tmp_path / "flwr", **{MARK: str(tmp_path)}), []
    for block in re.findall(r"```sh\n(.*?)```", HOSPITALS.read_text(encoding="utf-8"), flags=re.DOTALL):
        done = subprocess.run(
            ["bash", "-euc", block], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        told.append(done.stdout + done.stderr)
    assert "column 'sex' holds 'M' in line 9" in "".join(told)
    run, frame = tmp_path / "clinic" / "run", pd.read_csv(tmp_path / "north" / "2025.csv")
    loaded = fh.load(run)
    columns = loaded.trained.clients.federation.columns
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "model.onnx"))
    (scores,) = session.run(None, {"x": columns.encode(frame)})
    np.testing.assert_allclose(scores, loaded.scores(frame), atol=1e-5)
    simulated = _simulated_hospitals(tmp_path)
    assert loaded.best_round == simulated.best_round
    assert loaded.stages["finetune"].personal == pytest.approx(simulated.stages["finetune"].personal, abs=1e-6)
    for name, t in simulated.weights.items():
        torch.testing.assert_close(loaded.weights[name], t, atol=1e-6, rtol=0)
    cells = json.loads((run / "cross_site.json").read_text())["cells"]
    assert len(cells) == 12  # the global model and three others, at three sites
    assert [cell["accuracy"] for cell in cells if cell["model"] == cell["test"]] == pytest.approx(
        simulated.stages["finetune"].metrics["clients"], abs=1e-4
    )
    assert fh.load(tmp_path / "clinic" / "run-without-east").accuracy is not None
    assert "Models by site" in (tmp_path / "report.html").read_text()
    port = processes.free_ports(1)[0]
    background.append(
        processes.start(["fedhead", "board", "clinic", "--port", str(port)], tmp_path / "board.log", env, tmp_path)
    )
    _wait_for(port, tmp_path / "board.log")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
        shown = page.read().decode()
    assert "Models by site" in shown
    assert "run-without-east" in shown


def _simulated_hospitals(folder: Path) -> fh.Result:
    """Return the run of the guide in simulation, on the same tables."""
    frames = {}
    for name, drop in (("north", ["patient"]), ("south", ["patient"]), ("east", ["patient", "cholesterol"])):
        parts = [pd.read_csv(path) for path in sorted((folder / name).glob("*.csv"))]
        frame = pd.concat(parts, ignore_index=True).drop(columns=drop, errors="ignore")
        frames[name] = frame.rename(columns={"diagnosis": "disease"})
        frames[name]["cholesterol"] = frames[name].get("cholesterol", np.nan)
    made = fh.Federation.from_clients(
        frames, client_test=0.2, schema=folder / "schema.yaml", missing="mean", normalize="standard"
    )
    auroc = "auroc(bins=1024)"
    return fh.run(
        made,
        "mlp(hidden=[16])",
        rounds=5,
        local_epochs=2,
        lr=0.1,
        batch_size=16,
        validation=0.15,
        metrics=[auroc],
        callbacks=[fh.BestModel(auroc)],
        stages=["finetune"],
        executor="loop",
        device="cpu",
    )
