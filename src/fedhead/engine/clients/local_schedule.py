"""How much of its local work a client does in a phase of a round, and what its batches are drawn from."""

from __future__ import annotations

import math

from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.training import batching, per_client_counts
from fedhead.core.training.batching import DrawArguments
from fedhead.engine.policies.stragglers import Stragglers

TRAIN = "train"  # the label of the rounds; that of a stage is `stage:NAME`


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
    """Return what the batches of a phase are drawn from.

    Args:
        phase: The phase. One with its own number of epochs does these at every client.
        number: Index of the phase.
        task: Sizes and settings.
        client: Number of the client.
        round: Number of the round.
        label: `TRAIN`, or the stage's.
        samples: How many samples the client has for this phase.
        stragglers: Who does only a part of the work, in rounds.
    """
    local = task.local
    size = phase.batch_size or local.batch_size
    per_epoch = batching.steps_per_epoch(samples, size, local.drop_last)
    most: int | None = None
    if phase.epochs is not None:
        epochs = phase.epochs
    elif local.steps is None:
        epochs = per_client_counts.amount_of(local.epochs, client, round, task.seed)
    else:
        most = per_client_counts.amount_of(local.steps, client, round, task.seed)
        epochs = math.ceil(most / max(per_epoch, 1))
    part = stragglers.part(client, round, task.seed) if stragglers is not None and label == TRAIN else 1.0
    if part < 1:
        most = math.ceil(part * (epochs * per_epoch if most is None else most))
    epochs = epochs if phase.begins <= round <= (phase.ends or round) else 0
    key = batching.phase_key(task.seed, round, label, number, client)
    return DrawArguments(samples, size, epochs, local.drop_last, key, most)
