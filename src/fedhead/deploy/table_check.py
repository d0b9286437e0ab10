"""Check of a site's table before a run: the site reads it as it will for the server, and sends nothing."""

from __future__ import annotations

from dataclasses import replace

from fedhead.core.system.errors import BadInput, collecting_errors, raise_first, require
from fedhead.data.inputs import targets
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.flower import factory
from fedhead.flower.config import ServerFile, SiteFile
from fedhead.flower.site import site_data
from fedhead.flower.site.releases import sends_statistics
from fedhead.flower.wire.protocol import RunSpec, exchanges
from fedhead.recipes.recipe import Recipe
from fedhead.report.table import Cell, Table

MOST = 8  # values that a note lists


def check(file: SiteFile, recipe: Recipe | None = None) -> tuple[Table, list[str]]:
    """Return a summary of a site's table: rows, empty cells and values by column.

    Args:
        file: Config of the site.
        recipe: Recipe of the run; None: one that fills empty cells.

    Returns:
        The summary, and a note for each column with values for which a run may refuse the site.

    Raises:
        BadInput: If the site would refuse its table in a run; its notes are the other faults of its tables.
    """
    if file.schema is None:
        raise BadInput(f"{file.path} names no schema: only tables are checked before a run")
    schema = TableSchema.read(file.at(file.schema))
    flat = {"seed": 0, "missing": "mean", "normalize": "standard"} if recipe is None else recipe.flat()
    spec = RunSpec("0" * 8, flat, [file.name], 1, [], table={"schema": schema.to_json()})
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
    has_classes = targets.objective_of(spec.objective).has_classes
    listed = {name: column.categories for name, column in schema.columns.items() if column.type == "category"}
    listed |= {schema.label: schema.classes} if has_classes else {}
    rows, notes = list[list[Cell | str]](), list[str]()
    for name in (schema.label, *schema.columns):
        column = frame[name].dropna()
        if name in listed:
            counts = dict(sorted(column.value_counts().items()))
            rare = [value for value, count in counts.items() if count < minimum and listed[name] is None]
            values = ", ".join(
                f"{value} {count}" + (f" (not named: fewer than {minimum})" if value in rare else "")
                for value, count in counts.items()
            )
            if rare:
                run = "a run" if recipe is not None or name != schema.label else "a run with objective=multiclass"
                others = f" and {len(rare) - MOST} more" if len(rare) > MOST else ""
                notes.append(
                    f"column {name!r} has fewer than {minimum} rows of {', '.join(rare[:MOST])}{others}: {run} "
                    f"refuses this site, unless another site has {minimum} of each; list the values in the schema at "
                    "all sites"
                )
        else:
            values = f"{column.min():g} … {column.max():g}" if len(column) else ""
        rows.append([name, str(len(frame) - len(column)), values])
    title = f"{file.name}: {len(frame)} rows, {statistics.rows} of them to train on"
    return Table(title, ["column", "empty", "values"], rows), notes


def refusals(file: SiteFile, server: ServerFile) -> list[BadInput]:
    """Return why a site would refuse a run of tables by its policy, without reading its table.

    A model has at least as many inputs as the schema has columns. Only a model whose features are its inputs has more
    features with more inputs, and it is too wide with these.
    """
    errors = list[BadInput]()
    with collecting_errors(errors):
        fix = "agree on one, and name it in server.yaml and in site.yaml"
        require(server.schema is not None, f"{server.path} names no schema of tables: {fix}")
        spec = factory.run_spec(server)
    if errors or (schema := spec.schema) is None:
        return errors
    recipe, own = factory.recipe_of_site(spec.recipe_of_run([file.path.parent, server.path.parent])), file.own_model()
    with collecting_errors(errors):
        file.check(recipe, own)
    with collecting_errors(errors):
        file.check_held_out(recipe)
    with collecting_errors(errors):
        file.check_schema(spec)
    with collecting_errors(errors):
        classes = len(schema.classes or "01") if targets.objective_of(spec.objective).has_classes else 1
        experiment = factory.experiment_of(recipe, replace(spec, classes=classes, shape=[len(schema.columns)]), own)
        file.check_earlier(experiment.stages)
        model = experiment.models[spec.number(file.name) % len(experiment.models)]
        sent = [
            name for name, each in exchanges(experiment.method, experiment.stages).items() if sends_statistics(each)
        ]
        file.check_features(sent, model.features, len(schema.columns))
    return errors
