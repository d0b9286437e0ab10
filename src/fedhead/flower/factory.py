"""Factory of sites and of the server's transport, from the files of a deployment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import model_types, shape_of
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.input_spec import spec_inputs
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import TableStatistics
from fedhead.data.pool import Pool
from fedhead.data.sources import datasets
from fedhead.data.transforms.augment import Transform
from fedhead.engine.clients.clients import Clients
from fedhead.engine.experiment.experiment import Experiment, InputSpec
from fedhead.executors import select
from fedhead.flower.config import RECIPE_DATA, ServerFile, SiteFile
from fedhead.flower.ledger import LEDGER, Ledger
from fedhead.flower.server.dry_run import DryRun
from fedhead.flower.server.node_keys import secure_sum_keys, site_keys
from fedhead.flower.server.transport import FlowerTransport
from fedhead.flower.site import site_data as own_data
from fedhead.flower.site.secure_sums import SiteSecureSum, no_keys
from fedhead.flower.site.site import Site
from fedhead.flower.site.site_metrics import computed_at_sites
from fedhead.flower.site.site_run import SiteRun
from fedhead.flower.site.site_store import first_draw, keep_draw
from fedhead.flower.wire.protocol import RunSpec
from fedhead.flower.wire.site_errors import SiteProblem, coded
from fedhead.models.split_model import SplitModel
from fedhead.recipes import components, recipe_data
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedhead.privacy.secure_sum.identity import PrivateKey, PublicKey

Read = TypeVar("Read")


# -- sites ------------------------------------------------------------------------------------------
def site_of(path: str) -> Site:
    """Create the site of a site.yaml; if the file is invalid, the site replies with an error."""
    try:
        return site(SiteFile.read(path))
    except BadInput as error:
        reason = str(error)

    def site_run(spec: RunSpec, number: int) -> SiteRun:
        raise SiteProblem("settings", reason)

    return Site(Path(path).parent.name, site_run, Path(path).parent / "state")


def site(file: SiteFile) -> Site:
    """Create the site of a site.yaml."""
    if file.threads is not None:
        torch.set_num_threads(file.threads)

    kept: dict[str, SiteRun] = {}  # cache of data and model for the requests of one run

    def site_run(spec: RunSpec, number: int) -> SiteRun:
        if spec.digest not in kept:
            kept.clear()
            kept[spec.digest] = fresh(spec, number)
        return kept[spec.digest]

    def samples(spec: RunSpec, number: int, recipe: Recipe) -> Federation:
        if file.data == RECIPE_DATA:
            return own_data.share(recipe_data.federation(recipe, file.data_dir), number)
        more = {"test": file.test, "validation": file.validation, "size": file.size, "public": file.public}
        return read_own(own_data.federation, spec, number, **more)

    def read_own(read: Callable[..., Read], spec: RunSpec, number: int, **more: Any) -> Read:
        draw = file.at(file.state) / f"draw-{file.name}.json"
        first = first_draw(draw, spec, number) if file.draws else None
        drawn = None if first is None else (first["seed"], first["number"])
        names = own_data.ColumnNames(file.label, file.leave_out)
        more |= {"base": file.path.parent, "client_test": file.client_test, "drawn": drawn, "names": names}
        result = read(spec, number, file.data, **more)
        if first is not None:
            keep_draw(draw, first)  # after the data are read, so that a mistaken run decides nothing
        return result

    def statistics(spec: RunSpec, number: int) -> TableStatistics:
        recipe = spec.recipe_of_run([file.path.parent])
        file.check_held_out(recipe)
        file.check_schema(spec)
        with coded("data"):
            return read_own(own_data.statistics, spec, number, minimum=file.min_class_count)

    def fresh(spec: RunSpec, number: int) -> SiteRun:
        recipe = spec.recipe_of_run([file.path.parent])
        if file.data == RECIPE_DATA:
            file.check_data(recipe, file.path.parent)
        else:
            file.check_held_out(recipe)
            file.check_schema(spec)
        with coded("code"):
            _check_code(recipe, spec, file)
        with coded("data"):
            federation = samples(spec, number, recipe)
        if file.name == spec.leave_out_site and federation.validation is not None:
            federation = replace(federation, validation=[rows[:0] for rows in federation.validation])
        experiment = experiment_of(recipe_of_site(recipe), spec, file.own_model())
        model = experiment.models[number % len(experiment.models)]
        experiment = experiment.with_models([model], [0] * len(spec.sites))
        experiment.check_data(federation, stages=False)
        clients = Clients(experiment, federation, select.device(file.device), all_here=False)
        return SiteRun(clients, computed_at_sites(recipe.metrics, spec.objective))

    def keys(spec: RunSpec) -> tuple[PrivateKey, Mapping[int, PublicKey]]:
        if file.key is None or file.site_keys is None:
            return no_keys(spec)
        return secure_sum_keys(file.at(file.key), file.at(file.site_keys), file.name, spec.sites)

    secure = SiteSecureSum(keys, file.min_sum_sites)
    return Site(file.name, site_run, file.at(file.state), file.own_model(), file, statistics, secure)


# -- server -----------------------------------------------------------------------------------------
def run_spec(
    file: ServerFile,
    experiment: str | None = None,
    recipe: Recipe | None = None,
    table: Callable[[RunSpec], Mapping[str, Any]] | None = None,
) -> RunSpec:
    """Return the specification that all parties of a run share.

    Args:
        file: Config of the server.
        experiment: Identity of a resumed run; None: a new one.
        recipe: Recipe with the search path of the user's code; None: the recipe of the file.
        table: Returns the fitted entries of a specification with a schema.
    """
    recipe = recipe or file.recipe_of_run()
    run: dict[str, Any] = {
        "experiment": experiment or secrets.token_hex(8),
        "recipe": recipe.flat(),
        "sites": list(file.sites),
        "leave_out_site": file.leave_out_site,
        "code": _digests(recipe),
    }
    if file.schema is not None:
        schema = TableSchema.read(file.at(file.schema)).to_json()
        unfitted = RunSpec(**run, classes=1, shape=[], table={"schema": schema})
        return unfitted if table is None else replace(unfitted, **table(unfitted))
    names: Sequence[str] | None
    if recipe.objective in (None, "multiclass") and file.classes == 1:
        raise BadInput(f"{file.path}: classes is 1, there must be at least 2 to tell apart")
    if file.own_data is None:
        dataset = recipe_data.named_dataset(recipe)
        entry = None if recipe_data.is_path(dataset) else datasets.get(dataset, recipe.folders)
        if entry is None or isinstance(entry.shape, dict) or recipe.normalize == "standard":
            whole = recipe_data.federation(recipe, file.data)
            x, classes, names, transform = whole.train.x, whole.classes, whole.class_names, whole.transform
        else:
            x, classes, names = torch.zeros(1, *entry.shape), entry.classes, entry.names
            transform = entry.transform.replace(recipe.augment, recipe.normalize, resize=recipe.resize)
    elif file.classes is None or file.shape is None:
        raise BadInput(f"{file.path}: give both 'classes' and 'shape', or neither")
    else:
        x = torch.zeros(1, *file.shape)
        classes = file.classes if isinstance(file.classes, int) else len(file.classes)
        names = None if isinstance(file.classes, int) else file.classes
        images = len(file.shape) == 3
        transform = Transform.named(recipe.augment or "none", "half") if images else Transform()
        transform = transform.replace(normalize=recipe.normalize, resize=recipe.resize)
    named = None if names is None else list(names)
    return RunSpec(**run, classes=classes, class_names=named, **spec_inputs(x, transform))


def server_data(file: ServerFile, recipe: Recipe) -> Federation | None:
    """Return the recipe's data if the server tests on it, else None."""
    return recipe_data.federation(recipe, file.data) if file.test == RECIPE_DATA else None


def transport(
    file: ServerFile,
    spec: RunSpec,
    recipe: Recipe,
    whole: Federation | None,
    grid: Grid,
    log: Callable[[str], None] = print,
) -> FlowerTransport:
    """Create the server's transport to the sites of a run.

    Args:
        file: Config of the server.
        spec: Specification of the run.
        recipe: Recipe of the run.
        whole: Data of the recipe, from `server_data`.
        grid: Flower grid of the nodes.
        log: Called with one line per event.
    """
    experiment = experiment_of(recipe, spec)
    shared = file.public
    public = None if shared is None else own_data.load(shared, spec, file.path.parent)[0]
    test = None
    if whole is not None:
        test, public = whole.test, whole.public if public is None else public
    elif file.test not in (None, RECIPE_DATA):
        test, _ = own_data.load(file.test, spec, file.path.parent)
    pool = None if test is None or spec.leave_out_site else Pool(test, spec.transform())

    def models(overrides: Mapping[str, Any]) -> Sequence[SplitModel]:
        if not overrides:
            return experiment.models
        _check_own_model(overrides, file.allow)
        return experiment_of(recipe, spec, overrides).models

    dry_run = DryRun(spec, experiment, models, public, file.max_model_mb)
    keys = {} if file.keys is None else site_keys(file.at(file.keys), file.sites)
    return FlowerTransport(grid, spec, dry_run, file, pool, log, keys, Ledger(file.at(file.out) / LEDGER))


# -- code outside fedhead ---------------------------------------------------------------------------
SITE_KINDS = ("method", "stage", "model", "head", "upload")
FOREIGN = "the run names code that this site's site.yaml does not allow"
FOREIGN_MODEL = "the site's own model names code that the server's server.yaml does not allow"


def _check_code(recipe: Recipe, spec: RunSpec, file: SiteFile) -> None:
    """Check, before any import, that the site allows the recipe's code and has the server's version of it."""
    data = ("dataset", "partition") if file.data == RECIPE_DATA else ()
    components.refuse_foreign(recipe, [*SITE_KINDS, *data], file.allow, FOREIGN)
    digests = _digests(recipe)
    for name, digest in spec.code.items():
        if digests.get(name) != digest:
            raise BadInput(f"{name} is not the same code at this site as at the server: install the server's version")


def _check_own_model(overrides: Mapping[str, Any], allow: Sequence[str]) -> None:
    if any(key != "model" and not key.startswith("model.") for key in overrides):
        raise BadInput("the site replaces keys of the recipe that are no model's")
    components.refuse_foreign(Recipe.from_flat(overrides), ["model", "head"], allow, FOREIGN_MODEL)


def _digests(recipe: Recipe) -> dict[str, str]:
    """Return digests of the code outside fedhead that sites run, by component."""
    sources = components.sources(recipe, kinds=SITE_KINDS)
    return {entry["name"]: entry["digest"] for entry in sources if "digest" in entry}


def recipe_of_site(recipe: Recipe) -> Recipe:
    """Return the recipe without keys that only affect the server."""
    return replace(recipe, metrics=(), callbacks=(), aggregator=None, outliers=None, weights=None, sampler=None)


# -- both -------------------------------------------------------------------------------------------
def experiment_of(recipe: Recipe, spec: RunSpec, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Build and validate the experiment of a run.

    Args:
        recipe: Recipe of the run.
        spec: Specification of the run.
        overrides: Recipe keys that a site with its own architecture overrides.
    """
    if overrides:
        flat = recipe.flat()
        keys = {key: flat[key] for key in flat if "model" not in overrides or not key.startswith("model.")}
        recipe = Recipe.from_flat({**keys, **overrides}, recipe.folders)
    x = spec.blank()
    shape: Any = spec.transform().output_shape(shape_of(x))
    return build_experiment(recipe, InputSpec(shape, spec.classes, model_types(x), spec.objective))
