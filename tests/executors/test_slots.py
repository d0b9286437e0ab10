"""Which client trains in which slot, and how many slots there are."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedhead.executors.slots import OVERHEAD, choose_slots, plan

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25)


@given(LENGTHS, st.integers(1, 30))
def test_every_client_makes_all_its_steps_in_one_slot(lengths: list[int], slots: int) -> None:
    made = plan(lengths, slots)
    client, done = made.table()
    assert client.shape == done.shape == (made.steps, slots)
    for turn in made.turns:
        assert turn.end - turn.begin == lengths[turn.client]
        part = slice(turn.begin, turn.end)
        assert (client[part, turn.slot] == turn.client).all()
        assert done[part, turn.slot].tolist() == list(range(lengths[turn.client]))
    assert sorted(turn.client for turn in made.turns) == [k for k, length in enumerate(lengths) if length]
    for step in range(made.steps):
        active = [turn.slot for turn in made.turns if turn.begin <= step < turn.end]
        assert len(set(active)) == len(active)


@given(LENGTHS, st.integers(1, 30))
def test_idle_slots_read_a_batch_that_exists(lengths: list[int], slots: int) -> None:
    client, done = plan(lengths, slots).table()
    if client.size:
        assert (done < np.maximum(np.array(lengths)[client], 1)).all()
        assert (done >= 0).all()


@given(LENGTHS, st.integers(1, 30))
def test_segments_cover_all_steps_and_no_slot_changes_within_one(lengths: list[int], slots: int) -> None:
    made = plan(lengths, slots)
    now = 0
    for segment in made.segments:
        assert segment.steps > 0
        assert all(turn.begin == now for turn in segment.enter)
        now += segment.steps
        assert all(turn.end == now for turn in segment.leave)
    assert now == made.steps
    assert sum(len(segment.enter) for segment in made.segments) == len(made.turns)
    assert sum(len(segment.leave) for segment in made.segments) == len(made.turns)


@given(LENGTHS, st.integers(1, 30))
def test_no_slot_stands_idle_while_a_client_waits(lengths: list[int], slots: int) -> None:
    """Graham's bound for any list scheduling: the mean load, and one client less its share."""
    bound = sum(lengths) / slots + (1 - 1 / slots) * max(lengths)
    assert max(lengths) <= plan(lengths, slots).steps <= bound + 1e-9


@given(LENGTHS)
def test_no_other_number_of_slots_is_estimated_to_be_faster(lengths: list[int]) -> None:
    def cost(slots: int) -> int:
        return plan(lengths, slots).steps * (OVERHEAD + slots)

    chosen = choose_slots(lengths)
    assert 1 <= chosen <= len(lengths)
    assert cost(chosen) == min(cost(slots) for slots in range(1, len(lengths) + 1))


def test_slots_for_many_clients_are_chosen_in_no_time() -> None:
    begin = time.process_time()
    assert choose_slots([238, 190, 137, 95, 88, 75, 64, 59, 49, 10] * 64) == 160
    assert time.process_time() - begin < 1
