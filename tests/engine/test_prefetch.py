"""Batches drawn ahead are those that would have been drawn in time."""

from __future__ import annotations

import numpy as np
import pytest

from fedhead.core import batching
from fedhead.engine.prefetch import Prefetcher


def test_schedules_drawn_ahead_are_the_same_and_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [(50, 8, 3, False, key) for key in (1, 2, 3)]
    expected = [batching.draw_batches(*form) for form in forms]
    drawn: list[int] = []
    plainly = batching.draw_batches

    def counting(*form: int) -> batching.BatchSchedule:
        drawn.append(form[-1])
        return plainly(*form)  # type: ignore[arg-type]  # a flag is an int too

    monkeypatch.setattr(batching, "draw_batches", counting)
    ahead = Prefetcher()
    ahead.begin(forms[:2])
    for form, schedule in zip(forms, expected, strict=True):
        found = ahead.schedule(form)
        np.testing.assert_array_equal(found.positions, schedule.positions)
        np.testing.assert_array_equal(found.weight, schedule.weight)
    assert sorted(drawn) == [1, 2, 3]
    ahead.schedule(forms[0])  # asked for again, it is drawn again
    assert sorted(drawn) == [1, 1, 2, 3]
