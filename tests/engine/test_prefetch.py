"""Batches drawn ahead are those that would have been drawn in time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from fedhead.core.training import batching
from fedhead.core.training.batching import DrawArguments
from fedhead.engine.clients import prefetch
from fedhead.engine.clients.prefetch import Prefetcher


@pytest.mark.parametrize("few", [0, 1 << 14])
def test_schedules_drawn_ahead_are_the_same_and_drawn_once(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "FEW", few)
    threads: set[str] = set()
    draws = [DrawArguments(50, 8, 3, False, key) for key in (1, 2, 3)]
    expected = [batching.draw_batches(*arguments) for arguments in draws]
    drawn: list[int] = []
    plainly = batching.draw_all

    def counting(wanted: Sequence[DrawArguments]) -> list[batching.BatchSchedule]:
        drawn.extend(arguments.key for arguments in wanted)
        threads.add(threading.current_thread().name)
        return plainly(wanted)

    monkeypatch.setattr(batching, "draw_all", counting)
    ahead = Prefetcher()
    ahead.begin(draws[:2])
    for found, schedule in zip(ahead.schedules(draws), expected, strict=True):
        np.testing.assert_array_equal(found.positions, schedule.positions)
        np.testing.assert_array_equal(found.weight, schedule.weight)
    assert sorted(drawn) == [1, 2, 3]
    assert len(threads) == (1 if few else 2), "few samples are drawn at once, more of them by a thread"
    ahead.schedules(draws[:1])  # asked for again, it is drawn again
    assert sorted(drawn) == [1, 1, 2, 3]


def test_work_on_batches_follows_them_in_the_same_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [DrawArguments(50, 8, 3, False, key) for key in range(4)]
    ahead = Prefetcher()
    assert ahead.begin(draws[:1]), "few samples are drawn at once"
    monkeypatch.setattr(prefetch, "FEW", 0)
    assert not ahead.begin(draws)
    wanted = [draws[2], draws[0], draws[3]]
    names: list[str] = []

    def keys(found: list[batching.BatchSchedule]) -> list[int]:
        names.append(threading.current_thread().name)
        return [schedule.key for schedule in found]

    made = ahead.then(wanted, keys)
    ahead.wait()
    assert made.done()
    assert made.result() == [2, 0, 3]
    assert names == ["batches_0"]
    monkeypatch.setattr(batching, "draw_all", lambda wanted: [pytest.fail("drawn again") for _ in wanted])
    assert [schedule.key for schedule in ahead.schedules(draws)] == [0, 1, 2, 3], "they can still be asked for"


def test_there_may_be_nothing_to_wait_for() -> None:
    Prefetcher().wait()


def test_forgotten_batches_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [DrawArguments(50, 8, 3, False, key) for key in range(3)]
    shared = Prefetcher()
    with monkeypatch.context() as patch:
        patch.setattr(prefetch, "FEW", 0)
        assert not shared.begin(draws[:1])
    assert shared.begin(draws[1:]), "they are drawn, though the first are not"
    shared.forget(draws[:2])
    drawn: list[int] = []
    plainly = batching.draw_all
    monkeypatch.setattr(batching, "draw_all", lambda wanted: drawn.extend(one.key for one in wanted) or plainly(wanted))
    assert [schedule.key for schedule in shared.schedules(draws)] == [0, 1, 2]
    assert drawn == [0, 1], "what was forgotten is drawn anew"
