"""Forward passes of many clients: evaluation, features and stages without local training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from torch import Tensor

from fedhead.algorithm.client import INPUT_DIMS, ClientInputs
from fedhead.algorithm.phase import Reply
from fedhead.core.training.batch import Batch
from fedhead.core.tree.inputs import Inputs, map_inputs
from fedhead.core.tree.tree import unstack
from fedhead.core.tree.tree_check import check_rows
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.loop import Loop
from fedhead.executors.stack.map_clients import (
    SIMILAR,
    BatchFunction,
    MemoryBudget,
    map_clients,
    map_in_stacks,
    retry_with_smaller_batches,
    vectorized,
)

Reduce = Callable[[Tensor, Batch], Tensor]  # reduces the scores of a batch


def all_scores(scores: Tensor, batch: Batch) -> Tensor:
    """Return all scores unchanged."""
    return scores


def personal_scores(
    job: Job, pool: Pool, indices: Sequence[Indices], budget: MemoryBudget | None = None, reduce: Reduce = all_scores
) -> list[Tensor]:
    """Evaluate each client's personal model on the client's samples.

    Args:
        job: Clients and their states.
        pool: Test samples.
        indices: Sample indices of each client in the pool.
        budget: Memory budget for stacked models; None: one client at a time.
        reduce: Reduction applied to the scores of each batch.

    Returns:
        One tensor per client.
    """
    program, algorithm = job.program, job.program.algorithm

    def scores(inputs: ClientInputs, x: Inputs) -> Tensor:
        client = program.client(inputs)
        return check_rows(algorithm.predict(algorithm.personal_model(client), x, client), x, algorithm.name)

    def stacked(places: list[int]) -> BatchFunction:
        inputs, predict = job.take(places).stacked_inputs(), vectorized(scores, pool.device, (INPUT_DIMS, 0))
        return lambda width, batch: reduce(predict(inputs.take(slice(0, width)), batch.x), batch)

    def single(k: int) -> BatchFunction:
        inputs = job.inputs(k)
        return lambda _, batch: reduce(scores(inputs, map_inputs(itemgetter(0), batch.x))[None], batch)

    return map_clients(pool, indices, stacked, single, budget, "testing the clients")


@dataclass
class ForwardExecutor(Executor):
    """Executor for jobs without local training, such as CCVR's statistics: one stacked pass over the clients' data.

    A stack takes as long as its largest client, so each stack holds clients of similar sizes.
    """

    name = "stack"
    budget: MemoryBudget = field(default_factory=MemoryBudget)

    def train(self, job: Job) -> list[Reply]:
        """Run the job; replies are in the order of its clients."""
        assert not any(job.schedules), "there is nothing to train"
        sizes, activity = [len(indices) for indices in job.indices], f"stage {job.program.algorithm.name}"
        return map_in_stacks(
            sizes,
            lambda places: self._stacked(job.take(places)),
            lambda k: _single(job, k, activity),
            self.budget,
            activity,
            min_ratio=SIMILAR,
        )

    def _stacked(self, job: Job) -> list[Reply]:
        count = len(job.clients)
        program = replace(job.program, chunk=max(1, self.budget.samples // count))

        def run(inputs: ClientInputs) -> Reply:  # start and finish in one vmap, so that a shared model is never stacked
            return program.finish(program.start(inputs), inputs)

        reply = vectorized(run, program.pool.device, (INPUT_DIMS,))(job.stacked_inputs())
        return [Reply(*each) for each in zip(*(unstack(part, count) for part in reply), strict=True)]


def _single(job: Job, place: int, activity: str) -> Reply:
    def run(chunk: int) -> Reply:
        return Loop().train(replace(single, program=replace(single.program, chunk=chunk)))[0]

    single = job.take([place])
    return retry_with_smaller_batches(run, single.program.chunk, len(single.indices[0]), activity)[0]
