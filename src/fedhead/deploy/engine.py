"""`fedhead run RECIPE --engine flower`: a recipe run by local processes, with the same run folder as a simulation."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from fedhead.core.errors import BadInput
from fedhead.deploy import processes
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.metrics import Row
from fedhead.experiment import build
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run import Settings
from fedhead.experiment.run_folder import RunFolder
from fedhead.flower.assemble import site_names

# What a simulation alone lets one choose: each site has its own device, and trains its one client in a loop.
FIXED = {"device": ("auto", "cpu"), "executor": ("auto", "loop"), "precision": ("fp32",), "tensorboard": (False,)}


def execute(
    recipe: Recipe,
    out: str | Path,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
    log: Callable[[str], None] = lambda line: None,
) -> Row:
    """Run a recipe with one process per site.

    Logs, states of the sites and models are in OUT.flower, next to `out`.
    """
    settings = settings or Settings()
    for name, allowed in FIXED.items():
        if getattr(settings, name) not in allowed:
            raise BadInput(f"--{name} {getattr(settings, name)} is for simulations; leave it out with --engine flower")
    try:
        import flwr  # noqa: F401 (only to fail early if it is missing)
    except ImportError as error:
        raise BadInput("--engine flower needs Flower: pip install 'fedhead[flower]'") from error
    build.validate(recipe)
    out = Path(out).resolve()
    beside = out.with_name(f"{out.name}.flower")
    if resume and out.exists():
        folder = RunFolder.open(out, recipe)
        if folder.finished:
            return folder.result() or {}
        project = Project.open(beside)
    else:
        RunFolder.refuse_taken(out)
        project = _project(recipe, beside, out, settings.data)
    federation = LocalFederation(project, resume=resume, log=log)
    told = 0

    def tick() -> None:
        nonlocal told
        rows = RunFolder(out, recipe).metrics()
        for row in rows[told:]:
            on_row(row)
        told = max(told, len(rows))

    with processes.leaving_on_term(128 + signal.SIGTERM):
        try:
            federation.up()
            federation.watch(tick)
        finally:
            federation.close()
    return RunFolder.open(out).result() or {}


def _project(recipe: Recipe, beside: Path, out: Path, data: str | Path | None) -> Project:
    file = beside.with_name(f"{beside.name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    project = Project.init(beside, str(file), site_names(recipe.clients), out=str(out), folders=recipe.folders)
    inside = project.path / "recipe.yaml"
    file.rename(inside)
    text = project.server_file.read_text(encoding="utf-8").replace(str(file.resolve()), "recipe.yaml")
    if data is not None:
        folder = str(Path(data).resolve())
        text += f'data: "{folder}"\n'
        for site in project.sites().values():
            with site.path.open("a", encoding="utf-8") as yaml:
                yaml.write(f'data_folder: "{folder}"\n')
    project.server_file.write_text(text, encoding="utf-8")
    return project
