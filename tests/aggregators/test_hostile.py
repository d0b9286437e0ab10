"""Two hostile clients of ten on digits: what the plain mean makes of them, and a robust rule."""

from __future__ import annotations

import pytest

from fedhead.core.errors import Diverged
from fedhead.engine.rounds import run
from fedhead.experiment.experiment import Experiment
from fedhead.experiment.recipe import load
from fedhead.testing import hostile


def accuracy(attack: hostile.Attack, *settings: str) -> float:
    recipe = load("digits", ["partition=dirichlet(1.0)", "local_epochs=2", "rounds=5", *settings])
    made = Experiment.from_recipe(recipe)
    simulation = hostile.HostileSimulation(
        made.federation(),
        made.models,
        made.method,
        hostile=(0, 1),
        attack=attack,
        rounds=recipe.rounds,
        local=made.local,
        aggregator=made.aggregator,
        outliers=made.outliers,
    )
    found = run(simulation, evaluate_every=recipe.rounds).accuracy
    assert found is not None
    return found


@pytest.mark.slow
def test_multi_krum_holds_within_three_points_of_honest_clients_and_the_mean_does_not() -> None:
    honest = accuracy(hostile.honest)
    for attack in (hostile.scaled(-10), hostile.scaled(1e6), hostile.randomized, hostile.boasting):
        assert accuracy(attack, "aggregator=multi_krum(2)") > honest - 3
    with pytest.raises(Diverged):
        accuracy(hostile.scaled(1e6))
    assert accuracy(hostile.randomized) < honest - 20
