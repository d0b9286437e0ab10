"""Where and how a run is computed; it decides rounding and speed, never what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedhead.executors.client.base import Executor


@dataclass(frozen=True)
class Compute:
    """Device, executor and precision of a run.

    Args:
        data: The folder of the data sets; None: the default one.
        device: `auto`, `cpu`, `cuda` or a GPU by its number.
        executor: `auto` (the fastest in a short trial), a name that `fedhead ls executors` lists, your own by name, or
            an executor.
        precision: `fp32`, `tf32` (on a GPU) or `bf16`.
        threads: CPU threads; None: one for small models, torch's own choice for others.
        compile: When steps are compiled on a GPU, as in `select.COMPILE`.
        allow_changed_code: Resume also where the user's own code differs from what the run began with.
    """

    data: str | Path | None = None
    device: str = "auto"
    executor: str | Executor = "auto"
    precision: str = "fp32"
    threads: int | None = None
    compile: str = "auto"
    allow_changed_code: bool = False
