"""Client states take no more memory than they need: a thousand clients of CIFAR's size fit into little."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees
from fedhead.engine.states.client_states import ClientStates

SCRIPT = """
import resource, sys
import numpy as np
import fedhead as fh

rng = np.random.RandomState(0)
x = rng.randint(0, 256, (50_000, 3, 32, 32), dtype=np.uint8)
test = (x[:1000], rng.randint(0, 10, 1000))
fed = fh.Federation.from_arrays(x, rng.randint(0, 10, 50_000), "iid", clients=1000, classes=10, test=test)
del x
fh.run(fed, "simplecnn", sys.argv[1], rounds=2, participation=0.05, batch_size=50, executor=sys.argv[2], device="cpu")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.long
@pytest.mark.parametrize(("method", "executor"), [("fedavg", "loop"), ("scaffold", "stack")])
def test_a_thousand_clients_stay_under_two_gigabytes(method: str, executor: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, method, executor], capture_output=True, text=True, check=True, timeout=280
    )
    assert int(done.stdout.split()[-1]) < 2e9


def test_the_rows_of_a_stack_are_copied_only_if_other_states_outlive_them() -> None:
    first, second, third = (Tree(m=torch.arange(4.0).reshape(2, 2) + 10 * n) for n in range(3))

    def shares(client: int, stack: Tree) -> bool:
        return states[client]["m"].untyped_storage().data_ptr() == stack["m"].untyped_storage().data_ptr()

    states = ClientStates(lambda client: Tree(m=torch.zeros(2)))
    states.keep([3, 5], StackedTrees(first, [1, 0]))
    assert [states[k]["m"].tolist() for k in (3, 5)] == [[2.0, 3.0], [0.0, 1.0]]
    assert shares(3, first)
    states.keep([5, 7], StackedTrees(second, [0, 1]))
    assert [states[k]["m"].tolist() for k in (3, 5, 7)] == [[2.0, 3.0], [10.0, 11.0], [12.0, 13.0]]
    assert not shares(5, second)
    three = StackedTrees(third.map(lambda t: torch.cat([t, t[:1]])), [0, 1, 2])
    states.keep([3, 5, 7], three)
    assert shares(7, three.stacked)
    states[7] = three[2]
    assert not shares(7, three.stacked), "a single state owns its memory"
