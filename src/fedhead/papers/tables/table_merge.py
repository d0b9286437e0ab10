"""A table's file keeps its other cells where a command measures only some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedhead.core.components.parameters import check, from_mapping
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.papers.tables.paper_tables import PaperCell, PaperTable
from fedhead.papers.tables.published_settings import has_published_settings
from fedhead.papers.tables.table_result import CellResult, TableResult, cell_result, difference
from fedhead.runs.run_folder_schema import read_object

_MOST = 5  # names in one line
_REPLACED = "the file is replaced, without what it held"


@dataclass(frozen=True)
class _Held:
    """What a file holds of a cell, as far as it is kept; see `CellResult`."""

    cell: str
    overrides: tuple[str, ...]
    digest: str
    values: tuple[float | None, ...]
    mean: float | None
    deviation: float | None
    seeds: tuple[int, ...] = ()  # none: in a file that has them for all cells together alone
    splits: tuple[int, ...] = ()


def with_earlier(out: Path, made: TableResult, table: PaperTable, cells: Sequence[PaperCell], log: Log) -> TableResult:
    """Return a table with the cells that its file holds besides those of a command.

    Args:
        out: The folder of the file.
        made: What the command has measured.
        table: The table.
        cells: All cells of the table in their order, with the settings of the command.
        log: Called with a line about what is kept and what is not.
    """
    path = out / f"{made.file}.json"
    try:
        seeds, splits, held = _read(path, made.scale)
    except BadInput as error:
        log(str(error))
        return made
    if not held:
        return made
    new = {_key(cell): cell for cell in made.cells}
    old = {_key(one): one for one in held}
    merged = [
        new.get(_key(cell)) or _filled(cell, old[_key(cell)])
        for cell in _without_values(table, cells, made.comparable)
        if _key(cell) in new or _key(cell) in old
    ]
    there = {cell.cell for cell in merged}
    if lost := list(dict.fromkeys(one.cell for one in held if one.cell not in there)):
        names = ", ".join([*lost[:_MOST], *([f"… {len(lost) - _MOST} more"] if len(lost) > _MOST else [])])
        log(f"{path}: results of settings that the table no longer has are left out: {names}")
    if len(merged) == len(new):
        return made
    log(f"{path} and .csv keep what they hold of other cells: {len(merged) - len(new)}")
    return replace(made, cells=merged, seeds=sorted({*made.seeds, *seeds}), splits=sorted({*made.splits, *splits}))


def _read(path: Path, scale: str) -> tuple[tuple[int, ...], tuple[int, ...], list[_Held]]:
    """Return the seeds, the splits and the measured cells of a table's file; none where there is no file.

    Raises:
        BadInput: The file is of another scale, or can't be read.
    """
    content = read_object(path, _REPLACED)
    if content is None:
        return (), (), []
    try:
        if (other := content.get("scale")) != scale:
            raise BadInput(f"its scale is {other}, not {scale}")
        seeds, splits = (check(name, content.get(name), tuple[int, ...]) for name in ("seeds", "splits"))
        entries = check("cells", content.get("cells"), tuple[dict[str, object], ...])
        names = [field.name for field in fields(_Held)]
        held = [from_mapping(_Held, {name: entry[name] for name in names if name in entry}) for entry in entries]
    except BadInput as error:
        raise BadInput(f"{path}: {error}; {_REPLACED}") from error
    whole = [replace(one, seeds=one.seeds or seeds, splits=one.splits or splits) for one in held if one.values]
    return seeds, splits, whole


def _without_values(table: PaperTable, cells: Sequence[PaperCell], comparable: bool) -> Iterator[CellResult]:
    for cell in cells:
        try:
            yield cell_result(cell, [], comparable and has_published_settings(table, cell))
        except BadInput:  # it can't be built with the settings of the command: nothing was measured of it
            continue


def _filled(cell: CellResult, held: _Held) -> CellResult:
    return replace(
        cell,
        values=held.values,
        mean=held.mean,
        deviation=held.deviation,
        seeds=held.seeds,
        splits=held.splits,
        difference=difference(held.mean, cell.published, cell.comparable),
    )


def _key(cell: CellResult | _Held) -> tuple[str, ...]:
    return (cell.cell, *cell.overrides, cell.digest)
