"""Sweeps from Python: a recipe with every combination of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from fedhead.api.load import load
from fedhead.api.result_list import Results
from fedhead.core.system.log import logger
from fedhead.engine.experiment.compute import Compute
from fedhead.executors.client.base import Executor
from fedhead.runs.run_folder_schema import CONFIG
from fedhead.studies.engines import make_engine
from fedhead.studies.queue import read_shard
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells


def sweep(
    recipe: str | PathLike[str],
    axes: Mapping[str, Any] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    allow_changed_code: bool = False,
    minutes: float | None = None,
    shard: str | None = None,
    engine: Literal["local", "shared", "ray"] = "local",
    cpus_per_cell: float = 1,
    gpus_per_cell: float = 0,
    data: str | PathLike[str] | None = None,
    device: str = "auto",
    executor: str | Executor = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    progress: bool = False,
) -> Results:
    """Run a recipe with every combination of values, each with every seed, in one folder that can be resumed.

    Each cell and seed has its own run folder and ends as its single run would. Called again, it goes on where it was
    stopped. A run that fails is named in a warning, and the others go on.

    Args:
        recipe: Name of a built-in recipe, a recipe's file, or a sweep's file with axes in it.
        axes: Values by recipe key, as recipes write them: a list is an axis, all else holds for every cell. The value
            of a key that takes a list is a list, and a list of lists is an axis of such.
        seeds: How many seeds, or a list of them; None: the recipe's.
        out: The sweep's folder; None: one under runs/ that is named after the recipe and the axes.
        allow_changed_code: Add runs also to those of an older version of your own code.
        minutes: Begin no run after so many minutes.
        shard: Which part of how many to run, such as "3/16"; None: all.
        engine: "local" runs in this process, one run after another; "shared" all at once, runs that differ in seeds
            and partitions alone in one stack, which fills a GPU and rounds differently; "ray" on a Ray cluster.
        cpus_per_cell: With Ray: the CPUs that the runs of a cell get.
        gpus_per_cell: With Ray: the GPUs, or the share of one.
        data: The folder of the data sets; None: the default one.
        device: Where to compute: "auto", "cpu" or "cuda".
        executor: What trains the clients, as in `fedhead.run`.
        precision: "fp32", "tf32" or "bf16".
        compile: When steps are compiled on a GPU, as in `fedhead.run`.
        progress: Print a line about each run that begins.

    Returns:
        The runs that there are, finished or not, in the order of the cells, as `fedhead.load_all` returns them.

    Raises:
        BadInput: A cell can't be built, two are the same, or the folder holds something else, or results of an older
            version of your own code.
    """
    runner = make_engine(engine, cpus_per_cell, gpus_per_cell, "cell")
    part = None if shard is None else read_shard(shard)
    source = recipe if isinstance(recipe, str) else Path(recipe)
    table = plan(source, axes or {})
    place = None if data is None else Path(data)
    settings = Compute(place, device, executor, precision, allow_changed_code=allow_changed_code, compile=compile)
    result = run_sweep(
        table,
        None if out is None else Path(out),
        seeds=seeds,
        shard=part,
        minutes=minutes,
        compute=settings,
        engine=runner,
        log=print if progress else lambda text: None,
    )
    for name, reason in result.failures.items():
        logger.warning("%s failed: %s", name, reason)
    paths = [result.folder / path for cell in sweep_cells(table, seeds) for path in cell.runs]
    return Results(load(path, data=data, device=device) for path in paths if (path / CONFIG).exists())
