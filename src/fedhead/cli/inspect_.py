"""Commands that list, check and compare: ls, validate, partition, report."""

from __future__ import annotations

import dataclasses
import inspect
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhead.cli.app import app
from fedhead.cli.options import Assignments, DataFolder, RecipeName
from fedhead.cli.output import console, print_results
from fedhead.core.components.registry import Listed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ComponentKind(StrEnum):
    """What `ls` can list."""

    methods = "methods"
    stages = "stages"
    datasets = "datasets"
    models = "models"
    heads = "heads"
    partitions = "partitions"
    executors = "executors"
    analyses = "analyses"
    metrics = "metrics"
    uploads = "uploads"
    aggregators = "aggregators"
    samplers = "samplers"
    recipes = "recipes"


@app.command()
def ls(
    kind: Annotated[ComponentKind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """List what can be named: fedhead's own and what installed packages add, with where each comes from.

    \b
    Examples:
      fedhead ls methods
      fedhead ls recipes --json
    """
    entries = _recipes() if kind is ComponentKind.recipes else _components(kind)
    if as_json:
        print(json.dumps(entries))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "parameters", "description", "from"):
        table.add_column(column, no_wrap=column == "name")
    for entry in entries:
        words = entry["parameters"]
        given = words if isinstance(words, str) else ", ".join(f"{k}={v}" for k, v in words.items())
        table.add_row(Text(entry["name"]), Text(given), Text(entry["description"]), Text(entry["from"]))
    console().print(table)


def _components(kind: ComponentKind) -> list[dict[str, Any]]:
    from fedhead.papers.analyses.registry import ANALYSES
    from fedhead.recipes.components import registries

    entries = []
    for listed in {**registries(), "analyses": ANALYSES}[kind.value].listed():
        if listed.problem is not None:
            entries.append({"name": listed.name, "parameters": {}, "description": listed.problem, "from": "broken"})
            continue
        forms = getattr(listed.component, "forms", None)  # a built-in partition is written in several ways
        texts = [(f.text, f.parameters, f.description) for f in forms] if forms else [_describe(kind, listed)]
        entries += [
            {"name": name, "parameters": words, "description": description, "from": listed.source}
            for name, words, description in texts
        ]
    return entries


def _describe(kind: ComponentKind, listed: Listed) -> tuple[str, dict[str, Any] | str, str]:
    """A component's name, parameters and description."""
    thing: Any = listed.component
    description = str(getattr(thing, "description", "") or _first_line(thing))
    if kind is ComponentKind.datasets:
        shape = getattr(thing, "shape", None)
        known = {"classes": thing.classes, "shape": "x".join(map(str, shape))} if shape else {}
        return listed.name, known, description
    if dataclasses.is_dataclass(thing):
        fields = [f for f in dataclasses.fields(thing) if f.init and f.repr and f.default is not dataclasses.MISSING]
        return listed.name, {f.name: f.default for f in fields}, description
    skipped = {ComponentKind.models: ("classes",), ComponentKind.heads: ("key",)}.get(kind, ())
    no_parameters = kind in (ComponentKind.executors, ComponentKind.analyses, ComponentKind.metrics)
    own = {} if no_parameters else inspect.signature(thing).parameters
    words = {word: _plain(p.default) for word, p in own.items() if p.default is not p.empty and word not in skipped}
    return listed.name, words, description


def _recipes() -> list[dict[str, Any]]:
    from fedhead.recipes.recipe import builtin, describe, paper_tables

    every = {**builtin(), **paper_tables()}
    return [
        {"name": name, "parameters": {}, "description": describe(path), "from": "built in"}
        for name, path in every.items()
    ]


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)


@app.command()
def validate(recipe: RecipeName, assignments: Assignments = None) -> None:
    """Check a recipe before any compute: names, types, ranges, and that data set and model fit.

    \b
    Examples:
      fedhead validate digits
      fedhead validate my.yaml method=fedprox method.mu=0.1
    """
    from fedhead.recipes.experiment import Experiment
    from fedhead.recipes.recipe import load

    found = load(recipe, assignments or [])
    sizes = [sum(p.numel() for p in model.parameters()) for model in Experiment.from_recipe(found).models]
    names = [found.model] if isinstance(found.model, str) else found.model
    models = ", ".join(f"{name} of {size:,} parameters" for name, size in zip(names, sizes, strict=True))
    stages = "".join(f" + {stage}" for stage in found.stages)
    print(
        f"ok: {found.method}{stages} on {found.dataset}, {found.clients} clients by {found.partition}, "
        f"{found.rounds} rounds, {models}"
    )


@app.command()
def partition(
    dataset: Annotated[str, typer.Argument(help="A data set's name, see `fedhead ls datasets`.")],
    partition: Annotated[str, typer.Argument(help="How it is distributed, see `fedhead ls partitions`.")],
    clients: Annotated[int, typer.Option(help="How many clients.")] = 10,
    seed: Annotated[int, typer.Option(help="Which draw.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the bubbles to this .png, .svg or .pdf.")] = None,
    data: DataFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Show how a partition distributes a data set: the table of clients x classes, and the papers' bubble picture.

    \b
    Examples:
      fedhead partition digits 'dirichlet(0.1)' --clients 10 --seed 0
      fedhead partition digits 'skewed(2)' --clients 20 --plot split.png
    """
    from fedhead.recipes import recipe_data as recipe_data
    from fedhead.recipes.recipe import Recipe

    federation = recipe_data.federation(Recipe(dataset=dataset, partition=partition, clients=clients, seed=seed), data)
    counts = federation.counts()
    if plot is not None:
        from fedhead.report.figures import plots

        plots.save(plots.bubbles(counts, federation.names, f"{dataset}, {partition}, seed {seed}"), plot)
    if as_json:
        print(json.dumps({"counts": counts.tolist(), "names": federation.names and list(federation.names)}))
        return
    _print_counts(counts)
    if plot is not None:
        print(f"picture: {plot}")


def _print_counts(counts: NDArray[np.int64]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    wide = counts.shape[1] > 26  # too many columns to read: say how many classes each client holds
    columns = ["classes held", "largest class"] if wide else [str(c) for c in range(counts.shape[1])]
    for column in ("client", *columns, "samples"):
        table.add_column(column, justify="right")
    for k, row in enumerate(counts):
        cells = [int((row > 0).sum()), int(row.max())] if wide else row.tolist()
        table.add_row(str(k), *(str(c) if c else "·" for c in cells), str(int(row.sum())))
    total = [] if wide else [str(int(c)) for c in counts.sum(axis=0)]
    table.add_row("all", *(total or ["", ""]), str(int(counts.sum())), style="bold")
    console().print(table)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or studies, or around some.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Compare runs: a table here, and one self-contained HTML page with tables and curves.

    Runs that are unfinished or broken are named and count in no mean.

    \b
    Examples:
      fedhead report runs/*
      fedhead report runs/demo --out demo.html
    """
    from fedhead.report.compare import tables
    from fedhead.report.page import content, page

    found = content.load(runs)
    groups = tables.group_by_seed(found.runs)
    if groups:
        print_results(tables.table_rows(groups))
    if found.studies:
        print(f"studies: {len(found.studies)}")
    for note in found.notes:
        print(note)
    if unlabeled := tables.unlabeled_keys(groups):
        print(f"they also differ in {', '.join(unlabeled)}: the report says how")
    print(f"report: {page.save(page.page(found), out)}")
