"""Messages of a method and its stages, recorded on random samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.api.privacy.messages import DOWN, UP, Entry, Wire
from fedhead.core.system.errors import FedheadError, require
from fedhead.core.tree.inputs import blank, map_inputs
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import FittedTable, Preprocessing, TableStatistics
from fedhead.data.sources import datasets
from fedhead.engine.clients.evaluation import ClientTests
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, InputSpec, Schedule
from fedhead.engine.rounds.rounds import run
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received, SecureStep
from fedhead.flower.server.validation import Validation
from fedhead.flower.site.site_metrics import computed_at_sites
from fedhead.flower.wire.protocol import Response, exchanges
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.privacy import gaussian
from fedhead.privacy.secure_sum.session import Message, Session
from fedhead.recipes import recipe_data
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.stages.statistics_stage import StatisticsStage

WORDS = ("a", "b")  # categories or classes that a schema does not list
SPEC = "recipe, names of the sites and classes, normalization of inputs, digests of code: nothing about samples"
COMMON = "computed from the replies of all clients; with two clients, each may compute the other's"
OWN = "computed by the server for this client"
PER_CLIENT, KNOWN = "per client", "known to the server"
MASKED = "nothing: masked numbers, of which only the sum over clients can be read"
ROUNDS = {  # of replies in rounds with differential privacy, by the name of the protection
    "sample_dp": "weights trained with noise: about a single sample, no more than the budget permits",
    "client_dp": "an update without noise, which the server clips: the server adds the noise to the mean",
}
NOISY = "sums with the noise of differential privacy: about a single sample, no more than the budget permits"
UNKNOWN = "numbers of this client that its method does not describe"


def wire(
    method: str | Method | type[Method] = "fedavg",
    stages: Sequence[str | Stage | type[Stage]] = (),
    *,
    min_class_count: int = 5,
    schema: str | PathLike[str] | TableSchema | None = None,
    **keys: Any,
) -> Wire:
    """List all messages between server and clients, and what they reveal.

    The method and its stages run on three clients with random samples, and their messages are recorded. No data set is
    loaded, except your own files.

    Args:
        method: Method.
        stages: Stages after the rounds.
        min_class_count: Smallest class of which a site sends statistics.
        schema: Schema of the sites' tables, or its YAML file; None: other samples.
        **keys: Other keys of a recipe, such as `model="resnet20"`, `dataset="cifar10"` (default: the digits),
            `uploads=["half"]`.

    Returns:
        One entry per tensor and per entry of a header.

    Raises:
        BadInput: A key or a component is unknown, or components are incompatible.

    >>> [entry.name for entry in wire("fedavg", ["ncm"], rounds=0).of("work ncm", "to server") if entry.bytes]
    ['statistics/count', 'statistics/sum', 'architecture']
    """
    recipe = Recipe.from_flat({"dataset": "digits", "clients": 3, **keys})
    table = schema if schema is None or isinstance(schema, TableSchema) else TableSchema.read(schema)
    return wire_of_recipe(recipe, min_class_count, {"method": method, "stages": stages}, table)


def wire_of_recipe(
    recipe: Recipe,
    min_class_count: int = 5,
    given: Mapping[str, Any] | None = None,
    schema: TableSchema | None = None,
) -> Wire:
    """List all messages of a run of a recipe; `given` has components that override the recipe's.

    Raises:
        BadInput: Components are unknown or incompatible.
    """
    require(min_class_count >= 1, f"min_class_count: {min_class_count} is out of range, it must be at least 1")
    before, inputs = _table_messages(schema, recipe, min_class_count) if schema else ([], recipe_data.inputs(recipe))
    experiment = build_experiment(recipe, inputs, given=given)
    public = None
    if recipe.public is not None:
        sizes = datasets.get(recipe.public, recipe.folders).sizes or (0,)
        public = recipe.public_samples or (sizes[0] // 5 if recipe.public == recipe.dataset else 3000)
    at_sites = computed_at_sites(recipe.metrics, inputs.objective)
    federation = synthetic(inputs, public, recipe.validation is not None)
    return Wire([*before, *record(experiment, federation, min_class_count, at_sites)])


def _table_messages(schema: TableSchema, recipe: Recipe, minimum: int) -> tuple[list[Entry], InputSpec]:
    """Return the messages before the first round about tables of a schema, and the inputs of the model then."""
    import pandas as pd

    objective, wanted = recipe.objective or "multiclass", Preprocessing(recipe.missing == "mean", recipe.normalize)
    labels = (schema.classes or WORDS) if targets.objective_of(objective).has_classes else (0.0, 1.0)
    values = {
        name: column.range or (0.0, 1.0) if column.type == "number" else column.categories or WORDS
        for name, column in schema.columns.items()
    } | {schema.label: labels}
    rows = 2 * max(map(len, values.values()))  # every category and class is there
    columns = {name: [cells[i % len(cells)] for i in range(rows)] for name, cells in values.items()}
    frame = schema.table(pd.DataFrame(columns), objective=objective)
    sent = TableStatistics.of(frame, np.arange(rows), schema, wanted)
    fitted = FittedTable.fit(schema, [sent], wanted)
    entries = [Entry("statistics", DOWN, "request", reveals=SPEC)]
    for field in fields(sent):
        value = getattr(sent, field.name)
        for name, entry in value.items() if isinstance(value, dict) else [("", value)]:
            shape = (len(entry),) if field.name in ("sums", "histograms") else ()
            samples = PER_CLIENT if field.name == "rows" else f"at least {minimum} rows"
            text = TableStatistics.reveals[field.name]
            full = f"{field.name}/{name}" if name else field.name
            if entry or name:
                entries.append(Entry("statistics", UP, full, shape, samples=samples, needs="each", reveals=text))
    return entries, InputSpec((fitted.features,), len(fitted.classes) or 1, objective=objective)


def synthetic(inputs: InputSpec, public: int | None = None, validation: bool = False) -> Federation:
    """Return three clients with four random samples of each class, and as many test samples."""
    generator = torch.Generator().manual_seed(0)
    has_classes = targets.objective_of(inputs.objective).has_classes
    share = 4 * (inputs.classes if has_classes else 1)

    def samples(count: int) -> Samples:
        sample = blank(inputs.shape, inputs.types)
        x = map_inputs(
            lambda t: (
                torch.randn(count, *t.shape[1:], generator=generator)
                if t.is_floating_point()
                else t.expand(count, *t.shape[1:]).clone()
            ),
            sample,
        )
        y = targets.blank(count, inputs.classes, inputs.objective)
        return Samples(x, torch.arange(count) % inputs.classes if has_classes else y)

    rows = [np.arange(k * share, (k + 1) * share) for k in range(3)]
    return Federation(
        samples(3 * share),
        rows,
        inputs.classes,
        test=samples(3 * share),
        client_test=rows,
        client_test_from="test",
        public=None if public is None else samples(public),
        validation=rows if validation else None,
        objective=inputs.objective,
    )


def record(experiment: Experiment, federation: Federation, minimum: int, metrics: Mapping[str, Metric]) -> Wire:
    """Record the messages of an experiment: at most two rounds of one local step, and all stages."""
    experiment = Experiment(
        method=experiment.method,
        models=experiment.models,
        local=replace(experiment.local, epochs=1, steps=1, batch_size=4, warmup_rounds=0),
        schedule=Schedule(rounds=min(experiment.schedule.rounds, 2)),
        stages=experiment.stages,
        uploads=experiment.uploads,
        privacy=experiment.privacy,
    )
    recorder = _Recorder(experiment, federation, minimum, metrics)
    run(recorder)
    return Wire(recorder.entries.values())


class _Recorder(Simulation):
    """Simulation that records the messages to and from the first client."""

    def __init__(self, experiment: Experiment, federation: Federation, minimum: int, metrics: Mapping[str, Metric]):
        super().__init__(experiment, federation, Compute(device="cpu", executor="loop"))
        self.entries: dict[tuple[str, str, str], Entry] = {}
        self._minimum, self._at_sites = minimum, metrics
        self._labels = exchanges(experiment.method, experiment.stages)
        self._add(Entry("hello", DOWN, "request", reveals=SPEC))
        self._numbers("hello", "hello")

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        """Record the messages of the first client."""
        name = self._down("work", context)
        received = super().exchange(context, cohort)
        algorithm = context.algorithm
        sent = received.replies[cohort[0]].send
        if (secure := self.experiment.secure_exchange(algorithm, self.clients.task)) is not None:
            masked = secure.masked_form(sent)["masked"]
            self._add(Entry(name, UP, "masked", samples=PER_CLIENT, needs="sum", reveals=MASKED), masked)
            sent = Tree()
        for full, tensor in sent.leaves().items():
            entry = full.partition("/")[0]
            if entry in algorithm.public(self.clients.task):
                self._add(Entry(name, UP, full, samples=KNOWN, reveals=reveals(algorithm, full)), tensor)
                continue
            text = reveals(algorithm, full)
            if isinstance(algorithm, Method):
                text = next((ROUNDS[each.name] for each in self.experiment.privacy if each.name in ROUNDS), text)
            needs: Literal["sum", "each"] = "sum" if entry in algorithm.sums or algorithm.adds_up else "each"
            samples = self._samples(algorithm, entry)
            self._add(Entry(name, UP, full, samples=samples, needs=needs, reveals=text), tensor)
        self._numbers("work", name)
        return received

    def secure_step(
        self, context: Context, session: Session, step: SecureStep, messages: Mapping[int, Message]
    ) -> tuple[dict[int, Message], dict[int, FedheadError]]:
        """Record the first client's answer to a step of a secure sum."""
        name = f"secure {self._label(context)}"
        self._add(Entry(name, DOWN, "request", reveals=f"{SPEC}; keys and encrypted shares of other clients"))
        self._numbers("secure", name)
        return super().secure_step(context, session, step, messages)

    def evaluate(
        self, context: Context, deliver: bool = False, metrics: Mapping[str, Metric] = NO_METRICS
    ) -> ClientTests | None:
        """Record the first client's test request and answer."""
        name = self._down("test", context)
        validates = self.clients.federation.validation is not None and isinstance(context.algorithm, Method)
        if validates:
            down, up = Validation(self.clients, self._at_sites).message(context)
            for full, tensor in down.get("model", Tree()).leaves().items():
                self._add(Entry(name, DOWN, f"global/{full}", reveals=COMMON), tensor)
            samples = f"classes of at least {self._minimum} samples"
            for full, tensor in up.get("sums", Tree()).leaves().items():
                text = "sums over validation samples, from which the metrics are computed"
                self._add(Entry(name, UP, f"sums/{full}", samples=samples, needs="sum", reveals=text), tensor)
        self._numbers("test", name)
        return super().evaluate(context, deliver, metrics)

    def _label(self, context: Context) -> str:
        return next(label for label, known in self._labels.items() if known == context.algorithm)

    def _down(self, kind: str, context: Context) -> str:
        name = f"{kind} {self._label(context)}"
        broadcast, per_client = make_downlink(context.algorithm, context.server, [0], self.clients.task_of)
        frozen = {f"model/{full}" for full in self.clients.frozen_part(broadcast).leaves()}
        late = f"from round {context.round} on" if context.round > 1 and (name, DOWN, "request") in self.entries else ""
        self._add(Entry(name, DOWN, "request", reveals=SPEC))
        for tree, text in ((broadcast, COMMON), (per_client[0], OWN)):
            for full, tensor in tree.leaves().items():
                when = "until the client's first reply" if full in frozen else late
                self._add(Entry(name, DOWN, full, when=when, reveals=text), tensor)
        return name

    def _numbers(self, kind: str, name: str) -> None:
        """Record the entries of a response's header that answer a kind of request."""
        for field in fields(Response):
            if self.clients.privacy is not None and field.name == "train_loss":  # never computed
                continue
            if kind in field.metadata.get("kinds", ()):
                text = field.metadata["reveals"]
                self._add(Entry(name, UP, field.name, samples=PER_CLIENT, needs="each", reveals=text))

    def _samples(self, algorithm: Algorithm, entry: str) -> str:
        if isinstance(algorithm, StatisticsStage) and algorithm.release is not None:
            delta = algorithm.release.protection.delta
            return f"all samples, with noise: ε = {gaussian.epsilon_of(delta, algorithm.mu):.3g}, δ = {delta:g}"
        if entry in algorithm.class_rows:
            return f"at least {self._minimum} samples of a class"
        return f"classes of at least {self._minimum} samples" if entry in algorithm.class_sums else PER_CLIENT

    def _add(self, entry: Entry, tensor: Tensor | None = None) -> None:
        """Record an entry once, with the form of its tensor."""
        if tensor is not None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            entry = replace(entry, shape=tuple(tensor.shape), dtype=dtype, bytes=tensor.nbytes)
        self.entries.setdefault((entry.exchange, entry.direction, entry.name), entry)


def reveals(algorithm: Algorithm, name: str) -> str:
    """Return the sentence about a sent entry, which its class or a base class declares, by the longest prefix."""
    declared = {
        key: text for cls in reversed(type(algorithm).__mro__) for key, text in vars(cls).get("reveals", {}).items()
    }
    prefixes = [key for key in declared if name == key or name.startswith(f"{key}/")]
    if algorithm.protected and name.partition("/")[0] in algorithm.sums:
        return NOISY
    return declared[max(prefixes, key=len)] if prefixes else UNKNOWN
