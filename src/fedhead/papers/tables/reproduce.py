"""Reproduction of paper tables: runs, and comparison with the published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.system.log import Log
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.papers.tables import table_result
from fedhead.papers.tables.paper_tables import PaperCell, PaperTable, Scale
from fedhead.papers.tables.published import has_published_settings, published
from fedhead.papers.tables.results import Measurement, Results, digest
from fedhead.papers.tables.run_cells import MeasureContext, Repetition, enter_finished, measure_all
from fedhead.papers.tables.table_result import TableResult, cell_result
from fedhead.runs.run import check_compute
from fedhead.runs.run_folder_schema import TABLE_LOCK
from fedhead.studies.engines import LocalEngine
from fedhead.studies.sweep.seeds_and_splits import MOST_RUNS, drawn_seeds, drawn_splits
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.training import validate
from fedhead.studies.writable import check_writable


def reproduce(
    table: PaperTable,
    out: Path,
    *,
    results: Path | None = None,
    minutes: float | None = None,
    compute: Compute | None = None,
    shard: tuple[int, int] | None = None,
    engine: LocalEngine | None = None,
    log: Log = lambda _: None,
    **selection: Any,
) -> TableResult:
    """Run the missing runs of a table and write table.json and table.csv into the folder `out`.

    With variants or overrides these files have other names, such as table-public-code.csv (`TableResult.file`).
    Finished runs are not repeated, interrupted ones are resumed.

    Args:
        table: Table.
        out: Folder of the runs.
        results: Folder whose CSV files store results; stored results are not measured again.
        minutes: Time after which no run is started.
        compute: Device, executor, precision and data folder.
        shard: Shard to run and number of shards, (3, 16) for the third of sixteen; None: all runs.
        engine: LocalEngine that runs the trainings; None: sequentially in this process.
        log: Called with a line for each run that starts.
        **selection: Scale, cells, seeds and changes, see `plan`.

    Returns:
        The results of the selected cells so far, with failures.

    Raises:
        BadInput: If a cell can't be built, or nothing matches `pick`, `variants` or `overrides`.
    """
    compute, engine = compute or Compute(), engine or LocalEngine()
    budget = TimeBudget(minutes)
    engine.device(compute)
    cells, planned = plan(table, compute=compute, **selection)
    scale = cells[0].scale
    context = MeasureContext(out, Results(results), compute, budget, log, shard, engine)
    planned.sort(key=lambda r: (r.recipe.seed, r.split))  # by seed: an interrupted table has values for every cell
    stored = _rows(planned, context.results)
    enter_finished(planned, context)
    finished = [row for row in _rows(planned, context.results) if row not in stored]
    for place, known in ((context.results.folder, stored), (out, finished)):
        if known:
            log(_stored(known, place, len(planned), context))
    left, failures = measure_all(planned, context)
    check_writable(out, "the table", "--out")
    with FileLock(out / TABLE_LOCK):  # several commands may end at once; the last one writes all results
        context.results.read()  # includes results of other shards
        missing = enter_finished(planned, context)
        result = TableResult(
            table=table.name,
            title=table.title,
            scale=scale,
            seeds=sorted({r.recipe.seed for r in planned}),
            splits=sorted({r.split for r in planned}),
            comparable=scale == "full",
            axes=table.axes(),
            cells=[
                cell_result(
                    cell,
                    _rows([r for r in planned if r.cell is cell], context.results),
                    cell.scale == "full" and has_published_settings(table, cell),
                )
                for cell in cells
            ],
            left=left,
            failures=failures,
            file=table_result.file_name(selection.get("variants", ()), selection.get("overrides") or {}),
        )
        table_result.write(out, result)
    if shard is not None and missing:
        log(
            f"{len(missing)} of {len(planned)} results are not there yet: when all shards have ended, the command "
            "without --shard measures what is left and writes the table"
        )
    return result


def _rows(repetitions: Sequence[Repetition], results: Results) -> list[Measurement]:
    return [row for r in repetitions if (row := r.row(results)) is not None]


def _stored(known: Sequence[Measurement], place: Path | None, planned: int, context: MeasureContext) -> str:
    """Describe the stored results that are not measured again."""
    origins = sorted({f"{row.device}, {row.precision}" for row in known})
    precision = context.compute.precision
    others = "" if all(row.precision == precision for row in known) else f", where {precision} is asked for now"
    return (
        f"{len(known)} of {planned} results are in {place}, from {' and '.join(origins)}{others}; "
        "to measure them again, use another folder"
    )


def plan(
    table: PaperTable,
    *,
    scale: Scale = "full",
    pick: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    splits: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    compute: Compute | None = None,
) -> tuple[list[PaperCell], list[Repetition]]:
    """Return the selected cells of a table, and their repetitions per seed and split.

    Args:
        table: Table.
        scale: "full", or "small" for a version that runs in minutes on a CPU.
        pick: Selection of cells, see `PaperTable.cells`; empty: all.
        seeds: Number or list of seeds; None: all seeds of the paper.
        splits: Number of partitions, with seeds from 0, or list of their seeds; None: the table's default.
        overrides: Recipe keys that override those of the table.
        variants: Names of variants; if given, their cells are measured instead of the table's.
        compute: Device, executor, precision and data folder.

    Raises:
        BadInput: For every error that `reproduce` raises before its first run.
    """
    compute = compute or Compute()
    check_compute(compute, table.folders, select.device(compute.device))
    cells = table.cells(scale, pick)
    if variants:
        cells = table.varied(cells, variants)
    if overrides:
        _refuse_idle(table, cells, overrides)
        cells = [cell.override(overrides) for cell in cells]
    validate({" ".join([cell.name, *cell.overrides]): cell.recipe(0) for cell in cells})
    for cell in cells:
        published(cell)
    return cells, [r for cell in cells for r in repetitions(table.name, cell, scale, seeds, splits)]


def _refuse_idle(table: PaperTable, cells: Sequence[PaperCell], overrides: Mapping[str, Any]) -> None:
    """Check that every stage with overridden parameters is the stage of some cell."""
    stages = {cell.stage for cell in cells if cell.stage is not None}
    for key in overrides:
        if key.startswith("stage.") and not any(key.startswith(f"stage.{stage}.") for stage in stages):
            known = unknown("stage of these", key.split(".")[1], stages) if stages else "none of these has a stage"
            raise BadInput(f"{key}: concerns none of the picked cells of {table.name}: {known}")


def repetitions(
    table: str, cell: PaperCell, scale: Scale, seeds: int | Sequence[int] | None, splits: int | Sequence[int] | None
) -> list[Repetition]:
    """Return the repetitions of a cell, one per seed and split."""
    code = digest(cell)
    drawn = drawn_splits(splits), drawn_seeds(cell.seeds, seeds)
    if (count := len(drawn[0]) * len(drawn[1])) > MOST_RUNS:
        raise BadInput(f"--seeds and --splits: {count} runs of a cell are too many, at most {MOST_RUNS} can be listed")
    recipes = [cell.recipe(seed, split) for split in drawn[0] for seed in drawn[1]]
    return [Repetition(table, cell, code, scale, recipe) for recipe in recipes]
