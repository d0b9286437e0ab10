"""Two hostile clients of ten on digits: what the plain mean makes of them, and a robust rule."""

from __future__ import annotations

from dataclasses import replace

import hostile
import pytest
from simulations import run

from fedhead.core.system.errors import Diverged
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import load


def finished(attack: hostile.Attack, *settings: str, flip_labels: bool = False) -> FinishedRun:
    recipe = load("digits", ["partition=dirichlet(1.0)", "local_epochs=2", "rounds=5", *settings])
    experiment, federation = prepare(replace(recipe, evaluate_every=recipe.rounds))
    if flip_labels:
        federation = hostile.flip_labels(federation, (0, 1))
    compute = Compute(device="cpu", executor="loop")
    return run(hostile.HostileSimulation(experiment, federation, compute, hostile=(0, 1), attack=attack))


def accuracy(attack: hostile.Attack, *settings: str, flip_labels: bool = False) -> float:
    found = finished(attack, *settings, flip_labels=flip_labels).accuracy
    assert found is not None
    return found


@pytest.mark.long
def test_multi_krum_holds_within_three_points_of_honest_clients_and_the_mean_does_not() -> None:
    honest = accuracy(hostile.honest)
    for attack in (hostile.scaled(-10), hostile.scaled(1e6), hostile.randomized, hostile.boasting):
        assert accuracy(attack, "aggregator=multi_krum(2)") > honest - 3
    with pytest.raises(Diverged):
        accuracy(hostile.scaled(1e6))
    assert accuracy(hostile.randomized) < honest - 20


@pytest.mark.long
def test_multi_krum_loses_little_to_updates_as_long_as_honest_ones() -> None:
    """A flipped sign and flipped labels: docs/robustness.md has the means of three seeds after ten rounds."""
    honest = accuracy(hostile.honest, "rounds=10")
    assert accuracy(hostile.flipped, "rounds=10", "aggregator=multi_krum(2)") > honest - 5
    assert accuracy(hostile.honest, "rounds=10", "aggregator=multi_krum(2)", flip_labels=True) > honest - 3


@pytest.mark.slow
def test_inflated_statistics_leave_their_clients_out_of_ccvr() -> None:
    stage = finished(hostile.inflated, "rounds=2", "stages=[ccvr]").stages["ccvr"]
    assert list(stage.metrics["failed"]) == ["0", "1"]
    assert stage.metrics["participants"] == 8
