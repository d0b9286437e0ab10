"""The plain loop: one client after another, the reference that every other executor is held to."""

from __future__ import annotations

from dataclasses import replace

from fedhead.engine.job import Executor, Job
from fedhead.engine.local import Lift, local_round
from fedhead.types import Reply


class Loop(Executor):
    """Runs clients one after another, with the fastest memory layout of the device."""

    name = "loop"

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        program = replace(job.program, channels_last=True)
        return [local_round(program, job.sight(k), job.tables(k), Lift()) for k in range(len(job.clients))]
