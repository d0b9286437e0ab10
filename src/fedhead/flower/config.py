"""Config files of a deployment: `server.yaml` of the server and `site.yaml` of each site, validated when read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from fedhead.core.components.parameters import from_mapping
from fedhead.core.components.ranges import Above, AtLeast, Below, Matches
from fedhead.core.system.assignments import refuse_repeated
from fedhead.core.system.errors import BadInput
from fedhead.core.system.special_files import read_text
from fedhead.core.system.yaml_text import read_yaml
from fedhead.data.federation.preprocessing import FITTED
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.flower.server.dry_run import MODEL_MB
from fedhead.flower.server.timeouts import Timeouts
from fedhead.flower.site.policy import Policy
from fedhead.flower.wire.protocol import RunSpec
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.recipes.recipe import Recipe, assignment, load

SiteName = Annotated[
    str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "letters, digits, '.', '_' and '-', at most 64 of them")
]
# recipe keys that have no effect on the sites' own data
NOT_AT_SITES = ("subset", "size", "test", "public", "public_samples", "partition_seed")
NOT_FOR_TABLES = ("augment", "resize", "layout", "encode")
RECIPE_DATA = "recipe"  # in place of a path: use the site's shard of the recipe's data set


def refuse_other_clients(assignments: Sequence[str], sites: Sequence[str]) -> None:
    """Check that KEY=VALUE assignments don't set another number of clients than the number of sites.

    Raises:
        BadInput: If they contradict the list of sites.
    """
    clients = dict(map(assignment, assignments)).get("clients", len(sites))
    if clients != len(sites):
        raise BadInput(f"clients={clients} contradicts the list of sites, which has {len(sites)}: leave clients out")


@dataclass(frozen=True)
class _File:
    """YAML file of flat keys, with paths relative to its folder."""

    path: Path

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and validate a file."""
        try:
            path = Path(path).expanduser().resolve()
        except (OSError, RuntimeError) as error:  # circular links, a user without a home folder
            raise BadInput(f"{path} can't be read: {error}") from error
        entries = read_yaml(read_text(path), str(path))
        if not isinstance(entries, dict):
            raise BadInput(f"{path}: expected lines 'key: value'")
        try:
            return from_mapping(cls, {str(key): value for key, value in entries.items()}, path=path)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error

    def at(self, place: str) -> Path:
        """Resolve a path given in the file, relative to the file's folder."""
        return self.path.parent / os.path.expanduser(place)  # accepts any string, unlike pathlib's


@dataclass(frozen=True)
class ServerFile(_File, Timeouts):
    """Recipe, sites and timeouts of a deployed run."""

    recipe: str  # name or file of a recipe
    sites: tuple[SiteName, ...]  # names; the position of a site determines its batches
    out: str = "run"  # run folder
    set: tuple[str, ...] = ()  # key=value overrides of the recipe
    # number or names of the classes; null: those of the recipe's data set
    classes: Annotated[int, AtLeast(1)] | tuple[str, ...] | None = None
    shape: tuple[Annotated[int, AtLeast(1)], ...] | None = None  # of one sample; of images: channels, height, width
    schema: str | None = None  # instead of both: YAML file that describes the tables of the sites
    test: str | None = None  # the server's test samples: an .npz, a folder, a CSV, file.py:function, or recipe
    public: str | None = None  # public samples that the server and all sites have, in the same formats
    data: str | None = None  # folder of the recipe's data set
    allow: tuple[str, ...] = ()  # modules and files outside fedhead that a site's model may use
    max_model_mb: Annotated[int, AtLeast(1)] = MODEL_MB  # memory limit for building a site's model
    allow_changed_code: bool = False  # resume even if the user's code has changed
    keys: str | None = None  # folder of the sites' public keys, NAME.pub, which authenticate names
    leave_out_site: SiteName | None = None  # site that does not train and tests the global model

    def __post_init__(self) -> None:
        if len(set(self.sites)) != len(self.sites) or not self.sites:
            raise BadInput("sites: give at least one name, each once")
        if self.schema is not None and (self.classes is not None or self.shape is not None):
            raise BadInput("schema: it describes the samples; leave classes and shape out")
        if self.leave_out_site not in (None, *self.sites):
            raise BadInput(f"leave_out_site: {self.leave_out_site} is not among the sites {', '.join(self.sites)}")
        train = len(self.sites) - (self.leave_out_site is not None)
        if self.quorum > train:
            raise BadInput(f"quorum: {self.quorum} is out of range, it must be at most the {train} sites that train")
        try:
            refuse_repeated(self.set)
            refuse_other_clients(self.set, self.sites)
        except BadInput as error:
            raise BadInput(f"set: {error}") from error

    def without(self, site: str | None) -> ServerFile:
        """Return the file of a run that leaves a site out, in a folder of its own; None: this file."""
        if site is None:
            return self
        return dataclasses.replace(self, leave_out_site=site, out=f"{self.out}-without-{site}")

    @property
    def own_data(self) -> str | None:
        """Title of the sites' own data, which is the deployment's; None if they share the recipe's data set."""
        return None if (self.classes, self.shape, self.schema) == (None, None, None) else self.path.parent.name

    def recipe_of_run(self) -> Recipe:
        """Return the recipe with one client per site, and with the title of the sites' own data as its data set.

        Raises:
            BadInput: If the recipe asks for something that is not done with such data.
        """
        beside = self.at(self.recipe)
        recipe = load(beside if os.path.isfile(beside) else self.recipe, [*self.set, f"clients={len(self.sites)}"])
        recipe = dataclasses.replace(recipe, folders=(*recipe.folders, self.path.parent))
        if self.own_data is None:
            return recipe
        table = self.schema is not None
        for key in (*NOT_AT_SITES, *(NOT_FOR_TABLES if table else ["missing"])):
            if getattr(recipe, key) is not None:
                raise BadInput(f"{key}: {getattr(recipe, key)} is not done with the sites' own data: leave it out")
        if recipe.normalize in FITTED and not table:
            raise BadInput(f"normalize: {recipe.normalize} is for tables of sites: describe them in a 'schema'")
        return dataclasses.replace(recipe, dataset=self.own_data, partition="natural")


@dataclass(frozen=True)
class SiteFile(_File, Policy):
    """Data, state and policy of a site."""

    name: SiteName  # as in the server's list
    # a folder of class folders, an .npz, a CSV of path,label, file.py:function, or recipe; with a schema: tables
    data: str | tuple[str, ...]
    test: str | None = None  # the site's test samples, in the same formats
    client_test: Annotated[float, Above(0), Below(1)] | str | None = None  # or a share to hold out
    schema: str | None = None  # the schema of tables that this site has accepted: a copy of the server's file
    label: str | None = None  # column of the labels, if its name is not the schema's
    leave_out: tuple[str, ...] = ()  # columns of its tables that are not used
    validation: Annotated[float, Above(0), Below(1)] | None = None  # share to hold out for callbacks
    size: Annotated[int, AtLeast(1)] | None = None  # image files are scaled to size x size
    public: str | None = None
    data_dir: str | None = None  # folder of the recipe's data set, if data is `recipe`
    min_class_count: Annotated[int, AtLeast(1)] = field(default=5, kw_only=True)
    max_releases: Annotated[int, AtLeast(0)] | None = field(default=3, kw_only=True)
    allow_wide_features: bool = field(default=False, kw_only=True)
    state: str = "state"  # folder of persistent state
    model: str | None = None  # architecture of the site, if it differs from the recipe's
    model_parameters: dict[str, Any] = field(default_factory=dict)  # parameters of that architecture
    key: str | None = None  # the site's private key, for secure sums
    site_keys: str | None = None  # folder of all sites' public keys, NAME.pub, for secure sums
    device: str = "cpu"
    threads: Annotated[int, AtLeast(1)] | None = None

    @property
    def draws(self) -> bool:
        """True if a share of the samples is drawn to be held out."""
        return self.client_test is not None or self.validation is not None

    def check_held_out(self, recipe: Recipe) -> None:
        """Check that the recipe holds out no other samples of a site with its own data than site.yaml does."""
        for key in ("client_test", "validation"):
            asked, value = getattr(recipe, key), getattr(self, key)
            if asked is not None and asked != value and (key != "client_test" or self.test is None):
                raise SiteProblem(
                    "policy",
                    f"the recipe's {key} is {asked}, this site's is {value}: each site decides about its own samples; "
                    "set it in site.yaml, or leave it out of the recipe",
                )

    def check_schema(self, spec: RunSpec) -> None:
        """Check that the site has accepted the schema of the run's tables: it has the same in a file of its own."""
        if spec.schema is None and self.schema is None:
            return
        if spec.schema is None or self.schema is None:
            missing = (
                "the run has no schema of tables" if spec.schema is None else "site.yaml names no schema of tables"
            )
            raise SiteProblem("schema", f"{missing}: agree on one, and name it in server.yaml and in site.yaml")
        if (other := TableSchema.read(self.at(self.schema)).difference(spec.schema)) is not None:
            raise SiteProblem("schema", f"the server's schema differs from {self.schema} in {other}: agree on one")
        if spec.columns is not None and not spec.schema.permits(spec.columns):
            raise SiteProblem("schema", f"the server encodes other columns or categories than {self.schema} has")
        listed = spec.schema.classes
        if listed is not None and spec.class_names is not None and list(listed) != spec.class_names:
            raise SiteProblem("schema", f"the server's classes are not those of {self.schema}, in their order")

    def own_model(self) -> dict[str, Any]:
        """Return the recipe keys that the site overrides."""
        keys: dict[str, Any] = {} if self.model is None else {"model": self.model}
        return keys | {f"model.{word}": value for word, value in self.model_parameters.items()}
