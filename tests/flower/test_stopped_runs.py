"""Stages after a run over Flower that stopped: the server's requests have the number of the round after its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulations import make_simulation, make_world, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.experiment.callbacks import EarlyStopping
from fedhead.engine.rounds.observer import Snapshot
from fedhead.methods import METHODS
from fedhead.stages import STAGES

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.5)
SETTINGS: dict[str, Any] = {"local": LOCAL, "participation": 0.6}
NEVER_BETTER = EarlyStopping("train_loss", min_delta=1e6, patience=1)  # than the first round: it stops after the second


@pytest.mark.slow
@pytest.mark.parametrize("name", ["finetune", "finetune_ccvr"])
def test_a_stage_after_a_stopped_run_equals_that_of_a_shorter_one(name: str, tmp_path: Path) -> None:
    method, stage = METHODS["fedavg"](), STAGES[name]()
    world = make_world(
        federation(), {"own": network("batch")}, method, {**SETTINGS, "rounds": 6}, tmp_path, stages=[stage]
    )
    snapshots: list[Snapshot] = []
    found = run(world.transport(world.grid()), stages=[stage], callbacks=[NEVER_BETTER], on_round=snapshots.append)
    assert [row.get("stopped") for row in found.rows] == [None, "early_stopping"]
    simulation = make_simulation(federation(), [network("batch")], method, **SETTINGS, rounds=2)
    expected = run(simulation, stages=[stage]).stages[name].metrics
    resumed = run(world.transport(world.grid()), stages=[stage], callbacks=[NEVER_BETTER], resume=snapshots[-1])
    for result in (found, resumed):
        metrics = result.stages[name].metrics
        assert metrics["clients"] == pytest.approx(expected["clients"], abs=1e-6, nan_ok=True)
        assert metrics["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-6)
