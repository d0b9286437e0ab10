"""Schedules of the learning rate against those of torch."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from fedhead.core.system.errors import BadInput
from fedhead.core.training.schedules import learning_rate_factor, make_schedule

ROUNDS = 20


def _torch_scheduler(text: str, optimizer: torch.optim.Optimizer, rounds: int) -> lr_scheduler.LRScheduler:
    kinds = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, factor=1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=rounds),
        "cosine(0.1)": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=rounds, eta_min=0.05),
        "step(6, 0.5)": lambda: lr_scheduler.StepLR(optimizer, 6, 0.5),
    }
    return kinds[text]()


@pytest.mark.parametrize("text", ["constant", "cosine", "cosine(0.1)", "step(6, 0.5)"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_the_factors_are_those_of_torch(text: str, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = _torch_scheduler(text, optimizer, ROUNDS - warmup)
    if warmup:
        rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        scheduler = lr_scheduler.SequentialLR(optimizer, [rising, scheduler], milestones=[warmup])
    for number in range(ROUNDS):
        found = 0.5 * learning_rate_factor(make_schedule(text), warmup, number, ROUNDS)
        assert found == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), number
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("text", ["constant", "cosine", "step(6, 0.5)"])
def test_stages_keep_the_factor_of_the_last_round(text: str) -> None:
    schedule = make_schedule(text)
    last, after = (learning_rate_factor(schedule, 0, number, ROUNDS) for number in (ROUNDS - 1, ROUNDS))
    assert after == last > 0
    assert learning_rate_factor(schedule, 4, 0, 0) == 1.0  # without rounds


@pytest.mark.parametrize(
    ("text", "message"),
    [("cosin", "did you mean 'cosine'"), ("step", "size is missing"), ("step(0)", "size"), ("cosine(2)", "end")],
)
def test_wrong_schedules_are_named(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_schedule(text)
