"""Check of a site's table before a run: the site reads it as it will for the server, and sends nothing."""

from __future__ import annotations

from fedhead.core.system.errors import BadInput, collecting_errors, raise_first
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.flower.config import SiteFile
from fedhead.flower.site import site_data
from fedhead.flower.wire.protocol import RunSpec
from fedhead.report.table import Cell, Table


def check(file: SiteFile) -> Table:
    """Return a summary of a site's table: rows, empty cells and values by column.

    Raises:
        BadInput: If the site would refuse its table in a run; its notes are the other faults of its tables.
    """
    if file.schema is None:
        raise BadInput(f"{file.path} names no schema: only tables are checked before a run")
    schema = TableSchema.read(file.at(file.schema))
    recipe = {"seed": 0, "missing": "mean", "normalize": "standard"}
    spec = RunSpec("0" * 8, recipe, [file.name], 1, [], table={"schema": schema.to_json()})
    names, base = site_data.ColumnNames(file.label, file.leave_out), file.path.parent
    minimum = file.min_class_count
    errors = list[BadInput]()
    with collecting_errors(errors):
        frame = site_data.table(file.data, spec, base, names, strict=True)
    if file.test is not None:
        with collecting_errors(errors):
            site_data.table(file.test, spec, base, names)
    raise_first(errors)
    statistics = site_data.statistics(
        spec, 0, file.data, base=base, client_test=file.client_test, drawn=None, names=names, minimum=minimum
    )
    rows: list[list[Cell | str]] = []
    for name in (schema.label, *schema.columns):
        column = frame[name].dropna()
        if name == schema.label or schema.columns[name].type == "category":
            values = ", ".join(
                f"{value} {count}" + (f" (not named: fewer than {minimum})" if count < minimum else "")
                for value, count in sorted(column.value_counts().items())
            )
        else:
            values = f"{column.min():g} … {column.max():g}" if len(column) else ""
        rows.append([name, str(len(frame) - len(column)), values])
    title = f"{file.name}: {len(frame)} rows, {statistics.rows} of them to train on"
    return Table(title, ["column", "empty", "values"], rows)
