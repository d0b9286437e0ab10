"""Attributes that components change in themselves: what is found, put back and deleted."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.changed_attributes import ENTRY, ChangedAttributes
from fedhead.engine.clients.fingerprints import LARGE, fingerprint


class Part:
    """A component."""

    def __init__(self, **values: Any):
        vars(self).update(values)


def server() -> Tree:
    return Tree(model=torch.ones(2))


def test_what_was_added_or_replaced_after_a_snapshot_is_undone() -> None:
    first = torch.ones(2)
    part: Any = Part(tensor=first, seen={1}, number=1)
    attributes = ChangedAttributes({"method": part})
    early = attributes.held_in(server())
    part.tensor, part.seen, part.number, part.added = torch.zeros(2), {1, 2}, 2, [3]
    later = attributes.held_in(server())
    attributes.restore(early)
    assert part.tensor is first
    assert vars(part) == {"tensor": first, "seen": {1}, "number": 1}
    attributes.restore(later)
    assert part.tensor.equal(torch.zeros(2))
    assert (part.number, part.added) == (2, [3])


def test_what_was_changed_in_place_after_a_snapshot_is_named(caplog: pytest.LogCaptureFixture) -> None:
    part: Any = Part(moving=torch.ones(2))
    attributes = ChangedAttributes({"method": part})
    early = attributes.held_in(server())
    part.moving += 1
    later = attributes.held_in(server())
    attributes.restore(later)
    assert "in place" not in caplog.text
    attributes.restore(early)
    assert "Part.moving was changed in place, and stays as a later round left it" in caplog.text


def test_what_a_snapshot_lacks_stays_where_it_was_made_before_the_first_round() -> None:
    part: Any = Part()
    attributes = ChangedAttributes({"method": part})
    part.seen = {1}  # as `init_server` may
    attributes.restore(attributes.held_in(server()))
    assert part.seen == {1}


def test_a_tensor_that_is_not_on_the_device_of_the_run_is_put_back_where_it_was() -> None:
    part: Any = Part(table=None)
    attributes = ChangedAttributes({"method": part})
    part.table = torch.ones(2, device="meta")  # stands for one on the CPU in a run on a GPU
    held = attributes.held_in(server())
    moved = Tree({"method.table": torch.ones(2)})  # as a snapshot is moved to the device of the run
    attributes.restore(held.replace({ENTRY: held[ENTRY].replace(tensors=moved)}))
    assert part.table.device.type == "meta"


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"all": [value]}])
def test_a_large_array_is_marked_quickly_and_seen_to_change(wrap: Any) -> None:
    array = np.ones((5000, 2500))
    value = wrap(array)
    before = fingerprint(value)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert fingerprint(value) == before
        times.append(time.perf_counter() - start)
    assert min(times) < 2e-3  # 100 MB take 200 ms to read
    array *= 2
    assert fingerprint(value) != before
    assert fingerprint(wrap(np.ones((5000, 2500)))) != before


def test_all_of_a_small_array_is_read() -> None:
    array = np.zeros(LARGE // 8)
    before = fingerprint(array)
    array[12345] = 1
    assert fingerprint(array) != before
