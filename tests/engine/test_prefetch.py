"""Batches drawn ahead are those that would have been drawn in time."""

from __future__ import annotations

import numpy as np
import pytest

from fedhead.core import batching
from fedhead.engine import prefetch
from fedhead.engine.prefetch import Prefetcher


def test_schedules_drawn_ahead_are_the_same_and_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [(50, 8, 3, False, key) for key in (1, 2, 3)]
    expected = [batching.draw_batches(*arguments) for arguments in draws]
    drawn: list[int] = []
    plainly = batching.draw_batches

    def counting(*arguments: int) -> batching.BatchSchedule:
        drawn.append(arguments[-1])
        return plainly(*arguments)  # type: ignore[arg-type]  # a flag is an int too

    monkeypatch.setattr(batching, "draw_batches", counting)
    ahead = Prefetcher()
    ahead.begin(draws[:2])
    for arguments, schedule in zip(draws, expected, strict=True):
        found = ahead.schedule(arguments)
        np.testing.assert_array_equal(found.positions, schedule.positions)
        np.testing.assert_array_equal(found.weight, schedule.weight)
    assert sorted(drawn) == [1, 2, 3]
    ahead.schedule(draws[0])  # asked for again, it is drawn again
    assert sorted(drawn) == [1, 1, 2, 3]


def test_batches_are_drawn_once_for_several_runs_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[prefetch.DrawArguments] = [(40, 8, 1, False, key, None) for key in range(4)]
    shared = Prefetcher(keep=True)
    shared.begin(draws[:2])
    first = [shared.schedule(arguments) for arguments in draws[:3]]
    shared.begin(draws[:2])  # there already
    monkeypatch.setattr(prefetch, "KEPT", 120)  # of which one has 40
    shared.schedule(draws[3])
    assert [shared.schedule(arguments) is kept for arguments, kept in zip(draws, first, strict=False)] == [
        False,
        False,  # pushed out by the first, which was drawn again
        False,
    ]
    assert shared.schedule(draws[2]) is shared.schedule(draws[2])
