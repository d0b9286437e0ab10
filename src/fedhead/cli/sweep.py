"""The command sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import (
    AllowChangedCode,
    Assignments,
    Compile,
    DataFolder,
    Device,
    Devices,
    DryRun,
    Engine,
    ExecutorName,
    Minutes,
    Precision,
    Shard,
    TableAsJson,
    numbers,
)
from fedhead.cli.output import GOES_ON, print_table, raise_failures, resumable
from fedhead.core.system.errors import require

if TYPE_CHECKING:
    from fedhead.studies.sweep.sweep_table import SweepResult


@command("Compare")
def sweep(
    recipe: Annotated[str, Argument("Name or YAML file of a recipe, or YAML file of a sweep.", label="RECIPE")],
    assignments: Assignments = None,
    seeds: Annotated[str | None, Option("Number of seeds (3), or the seeds (7,8,9). [default: the recipe's]")] = None,
    out: Annotated[
        Path | None, Option("Output folder. [default: runs/sweep-RECIPE-CODE, with a code for the axes]")
    ] = None,
    allow_changed_code: AllowChangedCode = False,
    minutes: Minutes = None,
    shard: Shard = None,
    engine: Engine = "local",
    data_dir: DataFolder = None,
    device: Device = "auto",
    devices: Devices = None,
    executor: ExecutorName = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    dry_run: DryRun = False,
    as_json: TableAsJson = False,
    quiet: Annotated[bool, Option("Print no line per run.")] = False,
) -> None:
    """Run a recipe with every combination of values and every seed, and print one table.

    A list of values is an axis. The same command resumes an interrupted sweep; finished runs are not repeated. A failed
    cell is reported and does not stop the others. `fedhead report FOLDER` compares the runs.

    Examples:
      fedhead sweep digits 'method=[fedavg,mine.py:FedMine]' 'partition=[dirichlet(0.1),dirichlet(0.5)]' --seeds 3
      fedhead sweep digits 'method=[fedavg,fedprox(mu=0.01),fedprox(mu=0.1)]' rounds=5 --dry-run
      fedhead sweep digits 'stages=[[ccvr],[ridge]]' --seeds 5 --minutes 10
      fedhead sweep grid.yaml --out runs/grid --shard 3/16
      fedhead sweep grid.yaml --devices 0,1
    """
    from fedhead.engine.experiment.compute import Compute
    from fedhead.recipes.recipe import assignment
    from fedhead.studies.devices import engine_for
    from fedhead.studies.queue import read_shard
    from fedhead.studies.sweep.sweep import plan_runs, run_sweep
    from fedhead.studies.sweep.sweep_file import plan

    given = dict(assignment(text) for text in assignments or ())
    require(not (dry_run and as_json), "--json prints results, which --dry-run does not have: leave one out")
    part = None if shard is None else read_shard(shard)
    runner = engine_for(engine, devices, device)
    table = plan(recipe, given)
    options: dict[str, Any] = {
        "seeds": numbers("--seeds", seeds),
        "shard": part,
        "compute": Compute(
            data_dir, device, executor, precision, allow_changed_code=allow_changed_code, compile=compile
        ),
        "engine": runner,
    }
    if dry_run:
        planned = plan_runs(table, out, **options)
        print("\n".join(cell.name for cell in planned.cells))
        print(f"{len(planned.cells)} cells, {sum(len(cell.runs) for cell in planned.cells)} runs", file=sys.stderr)
        return
    with resumable():
        result = run_sweep(
            table,
            out,
            minutes=minutes,
            log=(lambda text: None) if quiet else lambda text: print(text, file=sys.stderr, flush=True),
            **options,
        )
    if as_json:
        print((result.folder / "table.json").read_text(encoding="utf-8"), end="")
    else:
        _print_table(result)
    raise_failures(result.failures)


def _print_table(result: SweepResult) -> None:
    from fedhead.report.table import Table, plus_minus

    body = []
    for row in result.rows:
        values = [plus_minus(*row.mean_and_deviation(column)) for column in result.columns]
        finished = str(row.runs) if row.finished == row.runs else f"{row.finished} of {row.runs}"
        body.append([*(row.choices[axis] for axis in result.axes), *values, finished])
    print_table(Table(result.title, [*result.axes, *result.columns, "runs"], body), left=len(result.axes))
    if result.left:
        print(f"the time is up: {result.left} runs are left; {GOES_ON}")
    print(f"written to {result.folder / 'table.csv'}; its runs are in {result.folder / 'runs'}")
