"""`fedhead.sweep`: a recipe with every combination of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from fedhead.api.load import load
from fedhead.api.result_list import Results
from fedhead.core.system.errors import BadInput
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
    engine: Literal["local", "shared"] = "local",
    data_dir: str | PathLike[str] | None = None,
    device: str = "auto",
    executor: str | Executor = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    progress: bool = False,
) -> Results:
    """Run a recipe with every combination of values and every seed, in one resumable folder.

    Each cell and seed has its own run folder and the same results as a single run. The same call resumes an
    interrupted sweep. A failed run is logged as a warning and does not stop the others.

    Args:
        recipe: Name of a built-in recipe, recipe file, or sweep file with axes.
        axes: Values by recipe key: a list is an axis, all other values hold for every cell. For keys that take a list,
            a list of lists is an axis.
        seeds: Number or list of seeds; None: those of the recipe.
        out: Folder of the sweep; None: one under runs/ that is named after the recipe and the axes.
        allow_changed_code: Add runs to those of an older version of your code.
        minutes: Time after which no run is started.
        shard: Shard to run, such as "3/16"; None: all runs.
        engine: "local" runs sequentially in this process. "shared" runs concurrently: runs that differ only in seed or
            partition share one stack, which uses a GPU better and rounds differently.
        data_dir: Folder of the data sets; None: the default one.
        device: Device: "auto", "cpu" or "cuda".
        executor: Executor, as in `fedhead.run`.
        precision: "fp32", "tf32" or "bf16".
        compile: Compilation of steps on a GPU, as in `fedhead.run`.
        progress: Print a line for each run that starts.

    Returns:
        All runs so far, finished or not, in the order of the cells, as returned by `fedhead.load_all`.

    Raises:
        BadInput: A cell can't be built, two cells are equal, or the folder holds something else or results of an older
            version of your code.
    """
    if not isinstance(axes, Mapping | None):
        raise BadInput(f'axes is {type(axes).__name__}: write a mapping, such as {{"method": ["fedavg", "fedprox"]}}')
    runner = make_engine(engine)
    part = None if shard is None else read_shard(shard)
    source = recipe if isinstance(recipe, str) else Path(recipe)
    table = plan(source, axes or {})
    place = None if data_dir is None else Path(data_dir)
    compute = Compute(place, device, executor, precision, allow_changed_code=allow_changed_code, compile=compile)
    result = run_sweep(
        table,
        None if out is None else Path(out),
        seeds=seeds,
        shard=part,
        minutes=minutes,
        compute=compute,
        engine=runner,
        log=print if progress else lambda text: None,
    )
    for name, reason in result.failures.items():
        logger.warning("%s failed: %s", name, reason)
    paths = [result.folder / path for cell in sweep_cells(table, seeds) for path in cell.runs]
    return Results(load(path, data_dir=data_dir, device=device) for path in paths if (path / CONFIG).exists())
