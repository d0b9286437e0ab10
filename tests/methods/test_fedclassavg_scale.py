"""Averaging classifiers costs what classifiers cost, however many clients and whatever their extractors."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from small import federation
from torch.utils._python_dispatch import TorchDispatchMode

from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import LocalTraining
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import aggregate, make_downlink
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.methods.fedclassavg import FedClassAvg
from fedhead.models.registry import build
from fedhead.models.split_model import weights

CLIENTS = 1000


def task_with(hidden: int) -> Clients:
    model = build("mlp", (1, 6, 6), 3, hidden=(hidden,), feature_layer=512)
    return Clients(Experiment(FedClassAvg(), (model,), LocalTraining(), Schedule(rounds=1)), federation())


@pytest.mark.parametrize("hidden", [16, 4096])
def test_a_thousand_classifiers_are_averaged_in_a_tenth_of_a_second_of_cpu_time(hidden: int) -> None:
    clients, method = task_with(hidden), FedClassAvg()
    w = weights(clients.task.model)
    server = method.init_server(w, clients.task)
    classifier = 4 * (512 * 3 + 3)
    assert server.nbytes == classifier  # the server holds no extractor
    assert w.nbytes > (20 if hidden == 4096 else 1) * classifier
    sent = {k: Tree(model=server["model"].map(lambda t, k=k: torch.full_like(t, float(k)))) for k in range(CLIENTS)}
    samples = {k: 1.0 + k % 3 for k in range(CLIENTS)}
    took = []
    for _ in range(3):
        begin = time.process_time()  # the machine may be busy with other things
        replies = Replies(list(sent), list(samples.values()), list(sent.values()))
        new = aggregate(method, server, replies, clients.task)
        down = make_downlink(method, new, range(CLIENTS), lambda _: clients.task)
        took.append(time.process_time() - begin)
    assert min(took) < 0.1, took
    assert new.nbytes == classifier
    assert down.nbytes() == CLIENTS * classifier
    expected = sum(k * samples[k] for k in sent) / sum(samples.values())
    torch.testing.assert_close(new["model"]["classifier.bias"], torch.full((3,), expected), rtol=1e-5, atol=0)


def test_memory_of_averaging_does_not_grow_with_the_extractors() -> None:
    made = []
    for hidden in (16, 4096):
        clients, method = task_with(hidden), FedClassAvg()
        server = method.init_server(weights(clients.task.model), clients.task)
        sent = {k: Tree(model=server["model"].clone()) for k in range(50)}
        with Allocated() as allocated:
            aggregate(method, server, Replies(list(sent), [1.0] * len(sent), list(sent.values())), clients.task)
        made.append(allocated.bytes)
    assert made[0] == made[1]
    assert 50 * 4 * (512 * 3 + 3) < made[0] < 4 * 50 * 4 * (512 * 3 + 3)  # the stack of classifiers, hardly more


class Allocated(TorchDispatchMode):
    """Counts the bytes of all tensors that come out of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += out.nbytes if isinstance(out, torch.Tensor) and not out._is_view() else 0
        return out
