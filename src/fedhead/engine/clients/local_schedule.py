"""How much of its local work a client does in a phase of a round, and what its batches are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching, per_client_counts
from fedhead.core.training.batching import DrawArguments
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.engine.policies.stragglers import Stragglers

TRAIN = "train"  # the label of the rounds; that of a stage is `stage:NAME`


class LocalSchedule:
    """What the batches of all clients are drawn from.

    Args:
        rows: Each client's training rows.
        public: The samples that all clients hold.
        stragglers: Who does only a part of the work, in rounds.
    """

    def __init__(self, rows: Sequence[Rows], public: Pool | None, stragglers: Stragglers | None):
        self._rows, self._public, self._stragglers = rows, public, stragglers

    def draws(
        self, algorithm: Algorithm, task: Task, clients: Sequence[int], round: int, label: str
    ) -> list[list[DrawArguments]]:
        """Return what the batches of each client's phases are drawn from.

        Args:
            algorithm: A method or a stage.
            task: Sizes and settings, of the clients' architecture.
            clients: Numbers of the clients.
            round: Number of the round.
            label: `TRAIN`, or the stage's.

        Raises:
            BadInput: If a phase trains on data that there is not.
        """
        phases = algorithm.phases(task)
        for number, phase in enumerate(phases):
            if phase.data not in ("private", "public"):
                raise BadInput(f"{algorithm.name}: phase {number} trains on data={phase.data!r}: say private or public")
            if phase.data == "public" and self._public is None:
                raise BadInput(f"{algorithm.name} needs public data: give the federation some (public=...)")
        public = 0 if self._public is None else len(self._public)

        def draw(client: int, number: int, phase: Phase) -> DrawArguments:
            samples = len(self._rows[client]) if phase.data == "private" else public
            return draw_arguments(phase, number, task, client, round, label, samples, self._stragglers)

        return [[draw(client, number, phase) for number, phase in enumerate(phases)] for client in clients]


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
