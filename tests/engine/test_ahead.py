"""Batches drawn ahead are those that would have been drawn in time."""

from __future__ import annotations

import numpy as np
import pytest

from fedhead import plan
from fedhead.engine.ahead import Ahead


def test_schedules_drawn_ahead_are_the_same_and_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [(50, 8, 3, False, key) for key in (1, 2, 3)]
    expected = [plan.schedule(*form) for form in forms]
    drawn: list[int] = []
    plainly = plan.schedule

    def counting(*form: int) -> plan.Schedule:
        drawn.append(form[-1])
        return plainly(*form)  # type: ignore[arg-type]  # a flag is an int too

    monkeypatch.setattr(plan, "schedule", counting)
    ahead = Ahead()
    ahead.begin(forms[:2])
    for form, schedule in zip(forms, expected, strict=True):
        found = ahead.schedule(form)
        np.testing.assert_array_equal(found.positions, schedule.positions)
        np.testing.assert_array_equal(found.weight, schedule.weight)
    assert sorted(drawn) == [1, 2, 3]
    ahead.schedule(forms[0])  # asked for again, it is drawn again
    assert sorted(drawn) == [1, 1, 2, 3]
