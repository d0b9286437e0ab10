"""Requests of the server and responses of sites, without the tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.core.components.parameters import from_mapping, parameters
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Matches
from fedhead.core.system.errors import BadInput
from fedhead.core.system.version import VERSION
from fedhead.core.tree.digest import digest_json
from fedhead.core.tree.inputs import Inputs
from fedhead.data.inputs.input_spec import blank_of, transform_of
from fedhead.data.inputs.missing_values import MissingValues
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import Preprocessing
from fedhead.data.transforms.augment import Side
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.engine.policies.reply_check import Refused
from fedhead.flower.wire.site_errors import SiteProblem
from fedhead.recipes.recipe import Recipe

T = TypeVar("T")
Count = Annotated[int, AtLeast(0), AtMost(2**53)]  # exact as a float
Percent = Annotated[float, AtLeast(0), AtMost(100)]
Value = Annotated[float, AtLeast(-1e100), AtMost(1e100)]  # within these limits the mean over sites is finite

TRAIN = "train"  # label of the rounds' exchanges; those of a stage are labelled by its name
KINDS = {
    "statistics": "query.statistics",
    "hello": "query.hello",
    "work": "train.work",
    "test": "evaluate.test",
    "secure": "query.secure",
    "model": "query.model",
}  # Flower's message types


def exchanges(method: Method, stages: Sequence[Stage]) -> dict[str, Algorithm]:
    """Return every exchange of a run by its label on the wire: rounds, stages, and prerequisites of stages."""
    labels: dict[str, Algorithm] = {TRAIN: method}
    for stage in stages:
        *earlier, last = stage.on_method(method).chain()
        labels |= {f"{stage.name}.{first.name}": first for first in earlier}
        labels[stage.name] = last
    return labels


@dataclass(frozen=True)
class RunSpec:
    """Specification that all parties of a run share; sent with every request, which may reach a new process."""

    # Identity of the run, also after resuming; a folder name at the sites.
    experiment: Annotated[str, Matches(r"[0-9a-f]{8,64}", "8 to 64 hexadecimal digits")]
    recipe: dict[str, Any]  # flat keys
    sites: list[str]  # names; the position is the client number, which determines the batches
    classes: Annotated[int, AtLeast(1)]
    shape: list[Annotated[int, AtLeast(1)]]  # shape of one sample
    class_names: list[str] | None = None
    mean: list[float] = field(default_factory=list)
    std: list[Annotated[float, Above(0)]] = field(default_factory=list)
    augment: list[str] = field(default_factory=list)
    resize: Side | None = None  # height and width of a model's inputs
    named: dict[str, Any] = field(default_factory=dict)  # of a model with several inputs: each `NamedInput`
    # Tables of sites: the `schema`, and once they are fitted the `columns` and the fill values of `missing` ones.
    table: dict[str, Any] = field(default_factory=dict)
    leave_out_site: str | None = None  # site that only tests the global model
    code: dict[str, Any] = field(default_factory=dict)  # digests of code outside fedhead that sites run
    fedhead: str = VERSION

    @cached_property
    def digest(self) -> str:
        """Digest of all entries, so long that a server can't find two specifications with the same one."""
        return digest_json(to_json(self), 32)

    @property
    def objective(self) -> str:
        """Objective of the sites' labels."""
        return str(self.recipe.get("objective") or "multiclass")

    def number(self, site: str) -> int:
        """Return the client number of a site."""
        if len(set(self.sites)) < len(self.sites):
            raise BadInput("sites: a name is listed twice, so one site could stand for several")
        if site not in self.sites:
            raise BadInput(
                f"site {site!r} is not among the server's sites {', '.join(self.sites)}: "
                "set its name in site.yaml, or add it to server.yaml"
            )
        return self.sites.index(site)

    def transform(self) -> AnyTransform:
        """Return the transform from stored samples to model inputs, the same at every site."""
        return transform_of(vars(self))

    def blank(self) -> Inputs:
        """Return a stored sample of zeros: tokens, image bytes, features, or a mapping of several."""
        dtype = "uint8" if len(self.shape) == 3 else "float32"
        return blank_of({**vars(self), "dtype": "int64" if self.recipe.get("layout") == "tokens" else dtype})

    @property
    def schema(self) -> TableSchema | None:
        """Schema of the sites' tables; None for other samples."""
        return TableSchema.from_mapping(self.table.get("schema"), "the server's schema") if self.table else None

    @property
    def columns(self) -> TableColumns | None:
        """Encoding of the sites' tables; None before it is fitted, and for other samples."""
        return _of_table(lambda: TableColumns.from_json(self.table.get("columns")))

    @property
    def missing(self) -> dict[str, MissingValues]:
        """Fill values of the sites' tables, by the name of the input."""
        given = self.table.get("missing")
        return {} if given is None else {"": _of_table(lambda: from_mapping(MissingValues, given))}

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the sites' tables."""
        return Preprocessing(self.recipe.get("missing") == "mean", self.recipe.get("normalize"))

    def recipe_of_run(self, folders: Iterable[Path] = ()) -> Recipe:
        """Return the run's recipe, with `folders` as the search path of its files."""
        return Recipe.from_flat(self.recipe, folders)


SecureStepName = Literal["advertise", "share", "mask", "unmask"]


@dataclass(frozen=True)
class SecureRequest:
    """Step of a secure sum; see `fedhead.privacy.secure_sum`."""

    id: Annotated[str, Matches(r"[0-9a-f]{32}", "32 hexadecimal digits")]  # identity of the session
    step: SecureStepName
    clients: list[Count]  # numbers of the invited sites
    messages: dict[str, str]  # see `secure_messages`


@dataclass(frozen=True)
class Request:
    """Request to one site."""

    # model: send the delivered model; secure: take a step of a secure sum
    kind: Literal["statistics", "hello", "work", "test", "model", "secure"]
    spec: RunSpec
    seconds: Annotated[float, Above(0)]  # deadline
    round: Count = 0
    algorithm: str = TRAIN
    # Last round in which this site's reply was accepted: its state after that round is valid.
    accepted: Count = 0
    staged: bool = False  # in a test: the site's reply to this stage was accepted, so its state is valid
    deliver: bool = False  # in a test: the site shall store the tested model
    validate: bool = False  # in a test: the site shall test on its validation samples too
    given: Literal["", "global", "site"] = ""  # in a test: test the model sent along, the global one or another site's
    best: Count = 0  # the site's state after this round belongs to the best models so far, so it is not deleted
    frozen: str = ""  # digest of the frozen parameters, if they are left out because the site has them
    secure: SecureRequest | None = None  # in secure, and in work whose reply is masked


def _told(reveals: str, *kinds: str) -> dict[str, Any]:
    """Return the metadata of an entry: a sentence about it, and the kinds of requests that it answers."""
    return {"reveals": reveals, "kinds": kinds}


@dataclass(frozen=True)
class Response:
    """Response of a site."""

    site: str  # name
    fedhead: str
    experiment: str
    round: Count
    algorithm: str
    problem: str | None = None  # error code, see `site_errors.TEXTS`
    reference: str = ""  # reference number of the error in the site's log
    samples: Count = field(
        default=0, metadata=_told("number of its training samples", "statistics", "hello", "work", "test", "secure")
    )
    tests: Count = field(default=0, metadata=_told("number of its test samples", "hello", "work", "test", "secure"))
    validations: Count = field(
        default=0, metadata=_told("number of its validation samples", "hello", "work", "test", "secure")
    )
    left_out: list[Count] = field(
        default_factory=list, metadata=_told("numbers of the classes with too few samples to be sent", "work", "test")
    )
    # `TableStatistics` of its table
    statistics: dict[str, Any] = field(
        default_factory=dict, metadata=_told("counts, sums or histograms of its table's columns", "statistics")
    )
    model: dict[str, Any] = field(
        default_factory=dict,
        metadata=_told("recipe keys of the site's own architecture, if it has one", "hello", "work", "test", "secure"),
    )
    train_loss: Value | None = field(default=None, metadata=_told("mean loss of the local steps", "work"))
    loss: Value | None = field(
        default=None, metadata=_told("mean loss of the site's model on its test samples", "test")
    )
    accuracy: Percent | None = field(
        default=None, metadata=_told("accuracy of the site's model on its test samples, in per cent", "test")
    )
    steps: dict[str, Percent | None] = field(
        default_factory=dict, metadata=_told("accuracies after the steps of a stage", "test")
    )
    metrics: dict[str, Value | None] = field(
        default_factory=dict, metadata=_told("further metrics on its test samples; null: no value", "test")
    )
    # After a validation: of the global model, sums over the samples; of the site's own model, as after a test.
    correct: Count | None = field(
        default=None, metadata=_told("number of validation samples that the global model classifies correctly", "test")
    )
    loss_sum: Value | None = field(
        default=None, metadata=_told("sum of the global model's losses on validation samples", "test")
    )
    personal: Percent | None = field(
        default=None, metadata=_told("accuracy of the site's model on validation samples", "test")
    )
    personal_loss: Value | None = field(
        default=None, metadata=_told("mean loss of the site's model on validation samples", "test")
    )
    personal_metrics: dict[str, Value | None] = field(
        default_factory=dict, metadata=_told("further metrics on validation samples", "test")
    )
    secure: dict[str, str] = field(
        default_factory=dict, metadata=_told("keys, and shares of secrets of masks, of a secure sum", "secure")
    )


def _of_table(read: Callable[[], T]) -> T:
    try:
        return read()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"the run's table can't be read: {error}") from error


def to_json(value: Any) -> dict[str, Any]:
    """Serialize a message for JSON."""
    entries = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    return {name: to_json(each) if is_dataclass(each) else each for name, each in entries.items()}


def read_request(header: Mapping[str, Any]) -> Request:
    """Parse and validate a request, the server's version of fedhead first."""
    given = header.get("spec")
    spec: dict[str, Any] = given if isinstance(given, dict) else {}
    if spec.get("fedhead") != VERSION:
        theirs = spec.get("fedhead")
        raise SiteProblem(
            "version",
            f"the server runs fedhead {theirs}, this site {VERSION}: install fedhead=={theirs} at the site",
        )
    secure = header.get("secure")
    if secure is not None:
        secure = _read(SecureRequest, secure if isinstance(secure, dict) else {}, "secure sum")
    return _read(Request, {**header, "spec": _read_spec(json.dumps(spec)), "secure": secure}, "request")


@lru_cache(maxsize=1)  # every request of a run has the same specification
def _read_spec(text: str) -> RunSpec:
    return _read(RunSpec, json.loads(text), "run's spec")


def read_response(header: Mapping[str, Any]) -> Response:
    """Parse and validate a response, the site's version of fedhead first."""
    theirs = header.get("fedhead")
    if theirs != VERSION and not header.get("problem"):
        raise Refused(f"the site runs fedhead {theirs}, the server {VERSION}: install fedhead=={VERSION} at the site")
    return _read(Response, header, "response")


def _read(cls: type[T], entries: Mapping[str, Any], name: str) -> T:
    for odd in sorted(entries.keys() ^ parameters(cls).keys()):
        side = "an unknown entry" if odd in entries else "no entry"
        raise Refused(f"the {name} has {side} {odd!r}: the other side runs another version of fedhead")
    try:
        return from_mapping(cls, entries, "entry")
    except BadInput as error:
        raise Refused(f"the {name} can't be read: {error}") from error
