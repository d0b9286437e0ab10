"""Local schedule: epochs, steps and batch seeds of a client's phase."""

from __future__ import annotations

import math

from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.training import batching, per_client_counts
from fedhead.core.training.batching import DrawArguments
from fedhead.engine.policies.stragglers import Stragglers

TRAIN = "train"  # label of training rounds; stages use `stage:NAME`


def draw_arguments(
    phase: Phase,
    number: int,
    task: Task,
    client: int,
    round: int,
    label: str,
    samples: int,
    stragglers: Stragglers | None,
) -> DrawArguments:
    """Return the draw arguments for the batches of a phase.

    Args:
        phase: Phase. Its own number of epochs, if any, applies to every client.
        number: Index of the phase.
        task: Task.
        client: Number of the client.
        round: Number of the round.
        label: `TRAIN`, or the label of a stage.
        samples: Number of samples that the client has for this phase.
        stragglers: Policy for late clients, which train only partially.
    """
    local = task.local
    size = phase.batch_size or local.batch_size
    per_epoch = batching.steps_per_epoch(samples, size, local.drop_last)
    max_steps: int | None = None
    if phase.epochs is not None:
        epochs = phase.epochs
    elif local.steps is None:
        epochs = per_client_counts.amount_of(local.epochs, client, round, task.seed)
    else:
        max_steps = per_client_counts.amount_of(local.steps, client, round, task.seed)
        epochs = math.ceil(max_steps / max(per_epoch, 1))
    part = stragglers.part(client, round, task.seed) if stragglers is not None and label == TRAIN else 1.0
    if part < 1:
        max_steps = math.ceil(part * (epochs * per_epoch if max_steps is None else max_steps))
    epochs = epochs if phase.first_round <= round <= (phase.last_round or round) else 0
    key = batching.phase_key(task.seed, round, label, number, client)
    return DrawArguments(samples, size, epochs, local.drop_last, key, max_steps)
