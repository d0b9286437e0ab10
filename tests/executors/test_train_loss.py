"""The loss of local training: that of plain PyTorch, the same on every executor."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from simulations import make_simulation
from small import federation, network
from tiers import quick
from torch.func import functional_call

from fedhead import SGD, FedAvg, LocalTraining, Phase, Task
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.1))


def simulation(name: str, executor: Executor, local: LocalTraining = LOCAL) -> Simulation:
    model = network("group", METHODS[name].head)
    made = make_simulation(federation(), [model], METHODS[name](), rounds=2, local=local, dtype=torch.float64)
    return made.using(executor)


@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg", "fedrep", "ditto"))
def test_every_executor_records_the_same_losses(name: str) -> None:
    rows = [
        [train_round(made, number) for number in (1, 2)]
        for made in (simulation(name, one) for one in (Loop(), Stack(), Stack(2)))
    ]
    first = [row["client_train_loss"] for row in rows[0]]
    assert all(value >= 0 for losses in first for value in losses.values())
    for others in rows[1:]:
        for mine, theirs in zip(first, others, strict=True):
            assert theirs["client_train_loss"] == pytest.approx(mine, abs=1e-10)


def test_it_is_the_mean_over_the_steps_of_plain_pytorch_weighted_by_their_samples() -> None:
    made = simulation("fedavg", Loop())
    (job,) = made.jobs_of_round(1)
    expected = {}
    for place, client in enumerate(job.clients):
        model = copy.deepcopy(job.program.task.model).train()
        w = {name: t.clone().requires_grad_() for name, t in made.server["model"].items()}
        total, count = 0.0, 0.0
        (batches,) = job.batches(place)
        for step in range(len(batches)):
            batch, _ = batches.batch(step, job.program.pool)
            real = batch.weight > 0
            loss = F.cross_entropy(functional_call(model, w, (batch.x[real],)).logits, batch.y[real])
            for (name, t), g in zip(w.items(), torch.autograd.grad(loss, list(w.values())), strict=True):
                w[name] = (t - 0.1 * g).detach().requires_grad_()
            total, count = total + loss.item() * int(real.sum()), count + int(real.sum())
        expected[str(client)] = total / count
    row = train_round(made, 1)
    assert row["client_train_loss"] == pytest.approx(expected, abs=1e-10)


class Later(FedAvg):
    """Its only phase begins in round 2."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Return FedAvg's phase, which begins later."""
        return tuple(replace(phase, first_round=2) for phase in super().phases(task))


def test_a_round_without_a_single_step_has_no_loss() -> None:
    made = make_simulation(federation(), [network()], Later(), rounds=2, local=LOCAL).using(Stack())
    first, second = (train_round(made, number) for number in (1, 2))
    assert (first["train_loss"], set(first["client_train_loss"].values())) == (None, {None})
    assert second["train_loss"] > 0
