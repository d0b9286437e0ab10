"""Compute options of a run. They affect rounding and speed, never the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedhead.executors.client.base import Executor


@dataclass(frozen=True)
class Compute:
    """Device, executor and precision of a run.

    Args:
        data_dir: Folder of the data sets; None: the default folder.
        device: `auto`, `cpu`, `cuda` or a GPU by its number.
        executor: `auto` (the fastest in a short trial), a name listed by `fedhead ls executors`, your own by name, or
            an executor.
        precision: `fp32`, `tf32` (on a GPU) or `bf16`.
        threads: CPU threads; None: one for small models, torch's own choice for others.
        compile: When to compile steps on a GPU; choices in `select.COMPILE`.
        allow_changed_code: Whether to resume even if the user's code has changed since the run started.
    """

    data_dir: str | Path | None = None
    device: str = "auto"
    executor: str | Executor = "auto"
    precision: str = "fp32"
    threads: int | None = None
    compile: str = "auto"
    allow_changed_code: bool = False
