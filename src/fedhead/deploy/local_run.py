"""A recipe on Flower with local processes, one per client: `fedhead run RECIPE --transport flower`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.processes import require_flower
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import Observer, Snapshot
from fedhead.flower.factory import site_names
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder

_NO_STATE = Snapshot(0, Tree(), {}, [])  # it is in the server's process
# Compute options that a site can follow: it has its own device, and trains its one client in a loop.
ALLOWED = {
    "device": ("auto", "cpu"),
    "executor": ("auto", "loop"),
    "precision": ("fp32",),
    "compile": ("auto",),
    "logger": ((),),
}


def execute(
    recipe: Recipe,
    out: str | Path,
    compute: Compute | None = None,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    loggers: Sequence[Logger] = (),
    log: Callable[[str], None] = lambda line: None,
) -> Row:
    """Run a recipe with one process per client.

    The run folder is that of a simulation. Logs, client states and models are in OUT.flower, next to `out`.

    Args:
        recipe: What to train.
        out: The run folder.
        compute: Where and how to compute; what only a simulation can do is refused.
        resume: Whether to continue a run that `out` holds.
        observers: Are told of every round, once its record is in the run folder.
        loggers: None; loggers are for simulations.
        log: Called with every line that the processes report.

    Returns:
        The run's final results.

    Raises:
        BadInput: If Flower is missing, or a setting is one of simulations.
    """
    compute = compute or Compute()
    options = {**vars(compute), "logger": tuple(loggers)}
    for name, allowed in ALLOWED.items():
        if (given := options[name]) not in allowed:
            raise BadInput(f"--{name} {given} is for simulations; leave it out with --transport flower")
    require_flower()
    out = Path(out).resolve()
    path = out.with_name(f"{out.name}.flower")
    if resume and RunFolder.holds_run(out):
        folder = RunFolder.open(out)
        folder.check_continued_by(recipe)
        if (folder.recipe.rounds, folder.recipe.stages) != (recipe.rounds, recipe.stages):
            raise BadInput(
                f"{out}: rounds and stages can be added in simulations only; with --transport flower, "
                f"resume with rounds={folder.recipe.rounds} and the run's own stages"
            )
        if folder.finished:
            return folder.result() or {}
        project = Project.open(path)
        if compute.allow_changed_code and not project.server().allow_changed_code:
            with project.server_file.open("a", encoding="utf-8") as yaml:
                yaml.write("allow_changed_code: true\n")
    else:
        RunFolder.refuse_taken(out)
        data = None if compute.data is None else str(Path(compute.data).resolve())
        project = Project.init(
            path,
            recipe,
            site_names(recipe.clients),
            out=str(out),
            server_keys={"data": data},
            # min_class_count as in simulations
            site_keys={"data_folder": data, "threads": compute.threads, "min_class_count": 1},
        )
    reported = 0

    def report_new_rows() -> None:
        nonlocal reported
        rows = RunFolder(out, recipe).metrics()
        for row in rows[reported:]:
            for observer in observers:
                observer.round(row, _NO_STATE)
        reported = max(reported, len(rows))

    LocalFederation(project, resume=resume, log=log).run(report_new_rows)
    return RunFolder.open(out).result() or {}
