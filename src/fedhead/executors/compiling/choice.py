"""Decision whether compiling a step on a GPU pays off; it takes half a minute or more."""

from __future__ import annotations

import copy
from typing import Any

import torch

from fedhead.algorithm.phase import Phase
from fedhead.algorithm.stage import Stage
from fedhead.executors.client.client_round import PhaseRun
from fedhead.executors.client.program import ClientProgram

# Thresholds above which compilation pays off: client steps, or floating-point operations of their forward passes. On an
# H200 the compiler took as long as 7,000 to 15,000 uncompiled steps of ResNet-20 with batches of 128, or 0.7e14 to
# 1.6e14 operations. Compiled steps are about twice as fast.
FROM_STEPS = 200_000
FROM_FLOPS = 2e14


def pays(client_steps: float, batch_size: int, program: ClientProgram) -> bool:
    """Return whether compiling the steps of a program pays off.

    Args:
        client_steps: Total number of steps of all clients.
        batch_size: Samples per step.
        program: Algorithm, task and data.
    """
    return client_steps >= FROM_STEPS or client_steps * batch_size * forward_flops(program) >= FROM_FLOPS


def pays_for(phase_run: PhaseRun) -> bool:
    """Return whether compiling a phase pays off, in a run that compiles its method.

    A method's step is used in all rounds. A stage runs once, and is often shorter than its compilation. Phases of a
    stage that train different parameters need separate compilations.
    """
    program = phase_run.step.program
    if not isinstance(program.algorithm, Stage):
        return True
    mine = _kind(phase_run.step.phase)
    alike = sum(_kind(phase) == mine for phase in program.algorithm.phases(program.task))  # a stage may repeat a phase
    steps = alike * sum(phase_run.batches.lengths())
    return pays(steps, phase_run.batches.indices.shape[-1], program)


def _kind(phase: Phase) -> tuple[Any, ...]:
    """Return a key that is equal for phases of a stage that share a compiled step."""
    return phase.trains, phase.data, phase.optimizer, getattr(phase.loss, "__name__", phase.loss)


def forward_flops(program: ClientProgram) -> int:
    """Return the floating-point operations of one sample's forward pass, as counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    pool, model = program.pool, copy.deepcopy(program.task.model).to(program.pool.device).eval()
    batch = pool.batch(torch.zeros(1, dtype=torch.int64, device=pool.device), torch.ones(1, device=pool.device))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch.x)
    return int(counter.get_total_flops())
