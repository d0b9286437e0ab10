"""Amounts of local work per client."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching, per_client_counts
from fedhead.core.training.per_client_counts import Uniform


def test_drawn_amounts_are_spread_evenly_and_depend_on_client_and_seed_alone() -> None:
    drawn = [Uniform(2, 5).of(k, 1, 0) for k in range(2000)]
    assert set(drawn) == {2, 3, 4, 5}
    assert all(abs(count - 500) < 100 for count in Counter(drawn).values())  # 5 standard deviations
    assert drawn == [Uniform(2, 5).of(k, 9, 0) for k in range(2000)]
    assert drawn != [Uniform(2, 5).of(k, 1, 1) for k in range(2000)]
    assert drawn == [Uniform(2, 5, seed=0).of(k, 1, 1) for k in range(2000)]


def test_drawn_anew_in_every_round() -> None:
    drawn = [[Uniform(1, 5, "round").of(k, number, 0) for k in range(9)] for number in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("amount", "mean"), [(3, 3.0), ((1, 4), 2.5), (Uniform(2, 5), 3.5)], ids=["same", "list", "drawn"]
)
def test_the_mean(amount: Any, mean: float) -> None:
    assert per_client_counts.mean(amount) == mean


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("uniform(5, 1)", r"uniform\(5, 1\): the first number must be at most the second"),
        ("uniform(0, 1)", "low: 0 is out of range, it must be at least 1"),
        ("uniform(1)", r"high is missing, write uniform\(low, high\)"),
        ("normal(1, 2)", "unknown form of local_epochs 'normal'"),
        ("uniform(1, 2, per=step)", "per: 'step' is not one of client, round"),
    ],
)
def test_what_is_no_amount_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        per_client_counts.read(text, "local_epochs")


def test_a_list_has_one_number_per_client() -> None:
    local = LocalTraining(epochs=[1, 2], steps=(3,))  # type: ignore[arg-type]  # lists become tuples
    assert local.epochs == (1, 2)
    with pytest.raises(BadInput, match="local_epochs lists 2 numbers for 3 clients: give one per client"):
        local.check_clients(3)
    with pytest.raises(BadInput, match="local_steps lists 1 numbers for 2 clients"):
        local.check_clients(2)
    with pytest.raises(BadInput, match="LocalTraining: epochs: the list is empty"):
        LocalTraining(epochs=())
    with pytest.raises(BadInput, match="0 is out of range"):
        LocalTraining(epochs=(1, 0))


@pytest.mark.parametrize("most", [0, 1, 3, 4, 6, 7, 99])
def test_fewer_steps_are_the_first_of_all(most: int) -> None:
    draw = batching.DrawArguments(7, 3, 2, False, 5)
    whole, part = batching.draw_all([draw, draw._replace(most=most)])
    assert len(part) == len(batching.empty_batches(draw._replace(most=most))) == min(most, 6)
    assert part.positions.tolist() == whole.positions[:most].tolist()
    assert part.weight.tolist() == whole.weight[:most].tolist()
