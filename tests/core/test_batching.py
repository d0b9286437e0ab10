"""The plan of local training and the keys behind it: what every executor and machine must draw alike, for good."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from fedhead.core.training import batching, global_generators, random


# -- batches ------------------------------------------------------------------------------------------
def test_an_epoch_shows_every_sample_once_in_an_order_of_its_own() -> None:
    (made,) = batching.draw_all([batching.DrawArguments(7, 3, 4, False, key=1)])
    shown = [made.positions[3 * e : 3 * e + 3][made.weight[3 * e : 3 * e + 3] > 0].tolist() for e in range(4)]
    assert [sorted(epoch) for epoch in shown] == [list(range(7))] * 4
    assert len({tuple(epoch) for epoch in shown}) == 4
    assert made.positions.max() < 7  # padding is the client's own samples too


@pytest.mark.parametrize(
    ("n", "drop_last", "weight"),
    [
        (5, False, [[1, 1], [1, 1], [1, 0]]),
        (5, True, [[1, 1], [1, 1]]),
        (4, True, [[1, 1], [1, 1]]),
        (1, True, [[1, 0]]),  # the only batch is never left out
        (0, True, []),
        (0, False, []),
    ],
)
def test_the_last_batch_of_an_epoch(n: int, drop_last: bool, weight: list[list[float]]) -> None:
    draw = batching.DrawArguments(n, 2, 1, drop_last, key=0)
    once, thrice = batching.draw_all([draw, draw._replace(epochs=3)])
    assert once.weight.tolist() == weight
    assert len(thrice) == len(batching.empty_batches(draw._replace(epochs=3))) == 3 * len(weight)


def test_every_part_of_a_phases_name_gives_batches_of_their_own() -> None:
    names = [(0, 1, "train", 0, 0), (1, 1, "train", 0, 0), (0, 2, "train", 0, 0), (0, 1, "stage:finetune", 0, 0)]
    names += [(0, 1, "train", 1, 0), (0, 1, "train", 0, 1)]
    assert len({batching.phase_key(*name) for name in names}) == len(names)


# -- keys ---------------------------------------------------------------------------------------------
def test_draws_never_change() -> None:
    assert random.key(0, "order", 3) == 8244215730568551301
    assert random.permutation(5, 10).tolist() == [3, 4, 2, 5, 0, 8, 7, 9, 1, 6]
    assert random.fold_in(torch.tensor([7, -7]), 2).tolist() == [245795625500164687, 614363966344218719]
    drawn = random.uniform(torch.tensor([1, -(2**62)]), 3) * 2**24
    assert drawn.tolist() == [[7239838, 443485, 16288696], [612623, 8348586, 12351459]]


def test_paths_that_read_alike_have_keys_of_their_own() -> None:
    paths: list[tuple[int | str, ...]] = [(1, 12), (11, 2), (112,), ("1", 12), ("1, 12",), (1, 12, "")]
    assert len({random.key(*path) for path in paths}) == len(paths)


def test_numbers_are_spread_evenly_over_0_to_1_without_1() -> None:
    drawn = random.uniform(random.fold_in(torch.tensor(3), torch.arange(100)), 100).flatten()
    assert 0 <= float(drawn.min()) < 0.001
    assert 0.999 < float(drawn.max()) < 1
    counts = np.histogram(drawn.numpy(), bins=10, range=(0, 1))[0]
    assert abs(counts - 1000).max() < 150  # 5 standard deviations


def test_global_generators_are_lent_to_one_thread_at_a_time_and_left_as_they_were() -> None:
    before = global_generators.states()
    with global_generators.seeded(5):
        alone, others = torch.rand(3), np.random.rand()  # noqa: NPY002 (as a user's model may)
        lent = threading.Event()

        def borrow() -> None:
            with global_generators.seeded(6):
                lent.set()

        other = threading.Thread(target=borrow)
        other.start()
        assert not lent.wait(0.1)
    other.join()
    assert lent.is_set()
    assert global_generators.states() == before
    with global_generators.seeded(5):
        assert torch.equal(torch.rand(3), alone)
        assert np.random.rand() == others  # noqa: NPY002 (as a user's model may)


def test_clients_drawn_at_once_have_the_batches_that_each_has_alone() -> None:
    draws = [
        batching.DrawArguments(n, 4, epochs, drop_last, 1000 * n + epochs, most)
        for n in (0, 3, 9, 9, 12)
        for epochs in (1, 3)
        for drop_last in (False, True)
        for most in (None, 2)
    ]
    for arguments, found in zip(draws, batching.draw_all(draws), strict=True):
        n, size, epochs, drop_last, key, most, _ = arguments
        steps = batching.steps_per_epoch(n, size, drop_last)
        order = [np.resize(random.permutation(random.key(key, epoch), n), steps * size) for epoch in range(epochs)]
        expected = np.array(order, np.int64).reshape(-1, size)[:most]
        np.testing.assert_array_equal(found.positions, expected)
        assert batching.count_steps(arguments) == len(found) == len(batching.empty_batches(arguments))
        counts = np.tile(np.arange(steps * size) < n, epochs).reshape(-1, size)[:most]
        np.testing.assert_array_equal(found.weight, counts)


@pytest.mark.parametrize("sizes", [(8, 8, 8), (3, 9, 0, 9), (0, 0)])  # as many samples each, uneven, none
def test_the_tables_of_batches_hold_each_clients_rows_and_zeros_after_its_last_step(sizes: tuple[int, ...]) -> None:
    draws = [batching.DrawArguments(n, 4, 2, False, key) for key, n in enumerate(sizes)]
    rows = [np.arange(100 * k, 100 * k + n) for k, n in enumerate(sizes)]
    clients = list(zip(batching.draw_all(draws), rows, strict=True))
    index, weight, lengths = batching.batch_tables(clients)
    assert (index.dtype, weight.dtype) == (np.int32, np.float32)
    assert index.shape == weight.shape == (max(lengths), len(sizes), 4)
    for k, (schedule, own) in enumerate(clients):
        assert lengths[k] == len(schedule)
        assert index[: len(schedule), k].tolist() == [[own[p] for p in step] for step in schedule.positions]
        assert weight[: len(schedule), k].tolist() == schedule.weight.tolist()
        assert not index[len(schedule) :, k].any()
        assert not weight[len(schedule) :, k].any()
