"""Engines: run the jobs of a queue in this process, or on a Ray cluster."""

from __future__ import annotations

from typing import Any

import torch

from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.studies.queue import Engine, Queue


class LocalEngine:
    """Runs jobs one after another in this process."""

    def device(self, settings: Compute) -> torch.device:
        """Return where jobs will train."""
        return select.device(settings.device)

    def run(self, queue: Queue[Any]) -> None:
        """Run jobs until the queue has none."""
        while (job := queue.next()) is not None:
            queue.finish(job, job.run())


def make_engine(name: str, cpus: float, gpus: float, per: str) -> Engine:
    """Return the engine of a name.

    Args:
        name: `local` or `ray`.
        cpus: CPUs of a job on a Ray cluster.
        gpus: Its GPUs.
        per: What a job is called in the names of options: --cpus-per-cell.

    Raises:
        BadInput: There is no such engine, Ray is not installed, or resources are given to this process.
    """
    if name == "ray":
        from fedhead.studies.ray_engine import RayEngine

        return RayEngine(cpus, gpus, per)
    if name != "local":
        raise BadInput(f"engine {name!r}: give 'local' or 'ray'")
    if (cpus, gpus) != (1, 0):
        raise BadInput(f"cpus and gpus per {per} are resources of a Ray cluster: add --engine ray (engine='ray')")
    return LocalEngine()
