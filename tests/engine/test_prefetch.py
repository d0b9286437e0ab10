"""Batches drawn ahead are those that would have been drawn in time."""

from __future__ import annotations

import numpy as np
import pytest

from fedhead.core import batching
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
