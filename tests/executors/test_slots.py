"""Which client trains in which slot, and how many slots there are."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedhead.executors.stack.slots import OVERHEAD, Turn, _paused, _whole, choose_slots, fewest_steps, plan

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25)


@given(LENGTHS, st.integers(1, 30))
def test_every_client_makes_all_its_steps_in_order_and_in_one_slot_at_a_time(lengths: list[int], slots: int) -> None:
    made = plan(lengths, slots)
    client, done = made.table()
    assert client.shape == done.shape == (made.steps, slots)
    steps: dict[int, list[int]] = {k: [] for k in range(len(lengths))}
    for turn in sorted(made.turns, key=lambda turn: turn.begin):
        assert turn.done == len(steps[turn.client])
        part = slice(turn.begin, turn.end)
        assert (client[part, turn.slot] == turn.client).all()
        steps[turn.client] += done[part, turn.slot].tolist()
    assert all(steps[k] == list(range(length)) for k, length in enumerate(lengths))
    for step in range(made.steps):
        active = [turn for turn in made.turns if turn.begin <= step < turn.end]
        assert len({turn.slot for turn in active}) == len({turn.client for turn in active}) == len(active)


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
def test_a_plan_is_the_better_one_of_two(lengths: list[int], slots: int) -> None:
    """Paused clients take the fewest steps there can be; whole ones are moved less often."""
    ordered = [k for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)) if lengths[k]]
    paused, whole = _paused(ordered, lengths, slots), _whole(ordered, lengths, slots)
    assert paused.steps <= fewest_steps(lengths, slots) <= whole.steps
    assert len(whole.turns) == len(ordered) <= len(paused.turns) <= len(ordered) + slots - 1
    assert plan(lengths, slots).cost == min(paused.cost, whole.cost)


def test_clients_are_paused_only_where_that_saves_steps() -> None:
    assert plan([99] * 10 + [98] * 10, 20).turns[-1] == Turn(19, 19, 0, 98)
    assert {turn.done for turn in plan([99] * 10 + [98] * 10, 20).turns} == {0}
    uneven = [1360, 950, 830, 830, 820, 790, 790, 700, 640, 50]  # a split of CIFAR-10, in 1,580 steps if none is paused
    assert plan(uneven, 6).steps == 1360
    assert {turn.done for turn in plan([40, 30, 30, 30], 2).turns} != {0}
    assert {turn.done for turn in plan([4, 3, 3, 3], 2).turns} == {0}, "a step is saved, and two turns more are needed"


@given(LENGTHS)
def test_no_other_number_of_slots_is_estimated_to_be_faster(lengths: list[int]) -> None:
    def cost(slots: int) -> int:
        return plan(lengths, slots).cost * (OVERHEAD + slots)

    chosen = choose_slots(lengths)
    assert 1 <= chosen <= len(lengths)
    assert cost(chosen) == min(cost(slots) for slots in range(1, len(lengths) + 1))


def test_slots_for_many_clients_are_chosen_in_no_time() -> None:
    begin = time.process_time()
    assert choose_slots([238, 190, 137, 95, 88, 75, 64, 59, 49, 10] * 64) == 160
    assert choose_slots([50] * 1024) == 1024
    assert 1 <= choose_slots([45 + k % 10 for k in range(1024)]) <= 1024
    assert 1 <= choose_slots([1 + k % 3 for k in range(1024)]) <= 1024
    assert time.process_time() - begin < 2
