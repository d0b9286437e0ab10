"""`fedhead wire` lists exactly what the messages of every method and stage hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from flwr.app import Message
from simulations import make_experiment, make_simulation, make_world, run
from small import federation, network
from tiers import quick

import fedhead as fh
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Float16Upload
from fedhead.api.privacy import wire as listing
from fedhead.api.privacy.messages import DOWN, HEADER, UP, Wire
from fedhead.api.privacy.wire import UNKNOWN
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.data.inputs.table_statistics import Preprocessing, TableStatistics
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.flower.wire import wire as wire_format
from fedhead.methods import METHODS
from fedhead.metrics.registry import find
from fedhead.models.split_model import SplitModel
from fedhead.stages import STAGES
from fedhead.testing.inprocess import InProcess

SETTINGS = {"rounds": 3, "local": LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05)), "participation": 1.0}
SMALL = {"samples": 20, "epochs": 2, "iterations": 2}  # in place of a paper's sizes, where a stage has such a field
STAGES_AT_SITES = sorted(name for name, stage in STAGES.items() if not stage.oracle)


class Recorded(InProcess):
    """Grid that keeps what passes, by message, after serialization."""

    def __init__(self, grid: InProcess):
        super().__init__(grid.nodes)
        self.seen: list[tuple[str, str, dict[str, torch.Tensor], dict[str, Any]]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            self.note(DOWN, message)
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for message in super().pull_messages(message_ids):
            self.note(UP, message, self._sent[message.metadata.reply_to_message_id])
            yield message

    def note(self, direction: str, message: Message, request: Message | None = None) -> None:
        header, trees = wire_format.unpack(message.content)
        asked = header if request is None else wire_format.unpack(request.content)[0]
        if header.get("problem"):
            return
        exchange = "hello" if asked["kind"] == "hello" else f"{asked['kind']} {asked['algorithm']}"
        prefix = {"model": "global/", "sums": "sums/"}
        tensors = {prefix.get(n, "") + full: t for n, tree in trees.items() for full, t in tree.leaves().items()}
        self.seen.append((exchange, direction, tensors, header))


def listed(entries: Wire) -> set[tuple[Any, ...]]:
    return {(e.exchange, e.direction, e.name, e.shape, e.dtype, e.bytes) for e in entries if e.dtype != HEADER}


def compare(
    model: SplitModel, method: fh.Method, folder: Path, stages: list[Stage], validated: bool = False, **more: Any
) -> Wire:
    """Hold the list against the messages of a run; return the list."""
    data, metrics = federation(), more.pop("metrics", [])
    if validated:
        data = dataclasses.replace(data, validation=[rows[:2] for rows in data.indices])
        more["validation"] = 0.2
    settings = {**SETTINGS, **more}
    world = make_world(data, {"own": model}, method, settings, folder, stages=stages, metrics=metrics)
    grid = Recorded(world.grid())
    run(world.transport(grid, round_seconds=60.0))
    experiment = make_experiment([model], method, stages=stages, **settings)
    assert data.public is not None
    random = listing.synthetic(InputSpec.of(data), len(data.public.y), validated)
    entries = listing.record(experiment, random, 1, find(metrics) if metrics else {})
    full = [(e, d, n, tuple(t.shape), str(t.dtype)[6:], t.nbytes) for e, d, ts, _ in grid.seen for n, t in ts.items()]
    partial = {entry[:3] for entry in listed(entries)} if model.frozen or validated else set()
    seen = {entry for entry in full if entry[5] or entry[:3] not in partial or entry in listed(entries)}
    assert seen == listed(entries)
    late = {(e.exchange, e.direction, e.name) for e in entries if e.when}
    for exchange, direction, tensors, header in grid.seen:
        message = entries.of(exchange, direction)
        missing = {e.name for e in message if e.dtype != HEADER} - tensors.keys()
        assert all((exchange, direction, name) in late for name in missing), "a message lacks only what `when` says"
        if not late:
            assert sum(t.nbytes for t in tensors.values()) == sum(e.bytes for e in message)
        fields = {"site", "fedhead", "experiment", "round", "algorithm", "problem", "reference"}
        told = {name for name, value in header.items() if value not in (None, "", [], {}, 0)} - fields
        assert direction == DOWN or told <= {e.name for e in message if e.dtype == HEADER}
    return entries


@pytest.mark.parametrize("name", quick(sorted(METHODS), "scaffold", "ktpfl"))
def test_every_method(name: str, tmp_path: Path) -> None:
    entries = compare(network("batch", METHODS[name].head), METHODS[name](), tmp_path, [])
    assert all(e.reveals not in ("", UNKNOWN) for e in entries)


@pytest.mark.parametrize("name", quick(STAGES_AT_SITES, "personal_ridge"))
def test_every_stage(name: str, tmp_path: Path) -> None:
    fields = {f.name for f in dataclasses.fields(STAGES[name])}
    stage = STAGES[name](**{word: value for word, value in SMALL.items() if word in fields})
    method = METHODS["fedetf" if stage.head == "etf" else "fedavg"]()
    entries = compare(network("batch", method.head), method, tmp_path, [stage])
    assert all(e.reveals not in ("", UNKNOWN) for e in entries)


def test_low_rank_statistics_and_heads_that_are_not_shared(tmp_path: Path) -> None:
    stage = STAGES["ccvr"](covariance="low-rank", rank=2, samples=20, epochs=1)
    entries = compare(network("group"), METHODS["fedrep"](), tmp_path, [stage])
    sent = {e.name: e.needs for e in entries.of("work ccvr", UP) if e.bytes and e.name != "architecture"}
    assert {"statistics/factor", "head/classifier.weight"} <= sent.keys()
    assert set(sent.values()) == {"each"}  # factors don't add up


def test_validation_uploads_and_frozen_weights(tmp_path: Path) -> None:
    entries = compare(network("group"), METHODS["fedavg"](), tmp_path, [], True, metrics=["balanced_accuracy"])
    assert any(e.name.startswith("sums/") and e.direction == UP for e in entries)
    entries = compare(network("group"), METHODS["fedavg"](), tmp_path / "half", [], uploads=[Float16Upload()])
    assert {e.dtype for e in entries.of("work train", UP) if e.bytes} == {"float16"}
    model = network("group")
    for parameter in model.extractor.parameters():
        parameter.requires_grad_(False)
    entries = compare(model, METHODS["fedavg"](), tmp_path / "frozen", [], participation=0.4)
    once = {e.name for e in entries.of("work train", DOWN) if e.when == "until the client's first reply"}
    assert once
    assert all(name.startswith("model/extractor") for name in once)


def test_differential_privacy(tmp_path: Path) -> None:
    privacy = [fh.DP(2.0, 1e-3, center="private"), fh.SampleDP(1e20, 1e-3, noise_multiplier=1.0)]
    entries = compare(network("group"), METHODS["fedavg"](), tmp_path, [fh.Ridge()], privacy=privacy, rounds=2)
    for exchange in ("work ridge.center", "work ridge"):
        noisy = [e.samples for e in entries.of(exchange, UP) if e.bytes and e.name != "architecture"]
        assert noisy
        assert all(text.startswith("all samples, with noise: ε = ") for text in noisy)
    assert "train_loss" not in {e.name for e in entries.of("work train", UP)}


@pytest.mark.parametrize("name", quick([n for n in STAGES_AT_SITES if STAGES[n].class_rows], "ridge"))
def test_sums_over_large_classes_hold_no_sample_of_a_small_one(name: str) -> None:
    def replies(pixel: int) -> Tree:
        data = federation()
        x, y = data.train.x.clone(), data.train.y.clone()
        y[:9] = torch.tensor([0] * 4 + [1] * 4 + [2])  # of client 0
        x[8] = pixel
        simulation = make_simulation(
            dataclasses.replace(data, train=fh.Samples(x, y)),
            network(),
            METHODS["fedavg"](),
            stages=[stage],
            rounds=0,
            local=SETTINGS["local"],
            min_class_count=2,
        )
        context = dataclasses.replace(simulation.context(0), algorithm=simulation.experiment.stages[0])
        return simulation.exchange(context, [0]).replies[0].send

    stage, entries = STAGES[name](), fh.wire("fedavg", [name], rounds=0, min_class_count=2)
    protected = {e.name for e in entries.of(f"work {name}", UP) if "at least 2" in e.samples}
    first, other = replies(0).leaves(), replies(255).leaves()
    assert protected == first.keys() - {"architecture"}
    assert all(torch.equal(first[full], other[full]) for full in protected)


def test_sums_noise_and_what_the_server_knows() -> None:
    entries = fh.wire("fedavg", ["ridge"], privacy=["dp(epsilon=2)"])
    assert {e.needs for e in entries.of("work train", UP) if e.bytes} == {"sum"}  # the mean is one
    sent = {e.name: e for e in entries.of("work ridge", UP) if e.bytes}
    assert sent["second_moment"].samples == "all samples, with noise: ε = 2, δ = 1e-05"
    assert (sent["architecture"].samples, sent["architecture"].needs) == ("known to the server", "")
    assert {e.needs for e in fh.wire("ktpfl", public="digits").of("work train", UP)} == {"each"}


@pytest.mark.parametrize("keys", [{}, {"missing": "mean"}, {"normalize": "standard"}, {"normalize": "quantiles"}])
def test_tables(keys: dict[str, str]) -> None:
    columns = {
        "age": {"range": [0, 100]},
        "sex": {"type": "category", "categories": ["f", "m"]},
        "ward": {"type": "category"},
    }
    schema = TableSchema.from_mapping({"label": "ill", "columns": columns})
    own = {"age": [20.0, 30.0, 70.0], "sex": ["f", "m", "f"], "ward": ["x", "y", "x"], "ill": ["no", "yes", "no"]}
    wanted = Preprocessing(keys.get("missing") == "mean", keys.get("normalize"))
    sent = TableStatistics.of(schema.table(pd.DataFrame(own)), torch.arange(3).numpy(), schema, wanted)
    names = set()
    for name, value in dataclasses.asdict(sent).items():
        names |= {f"{name}/{key}" for key in value} if isinstance(value, dict) else {name} if value else set()
    entries = fh.wire("fedavg", schema=schema, **keys)
    assert {e.name for e in entries.of("statistics", UP)} == names
    assert all(e.reveals for e in entries)


def test_bad_input() -> None:
    with pytest.raises(fh.BadInput, match="unknown method"):
        fh.wire("fedavgg")
    with pytest.raises(fh.BadInput, match="ktpfl needs public data"):
        fh.wire("ktpfl")
    with pytest.raises(fh.BadInput, match="min_class_count: 0 is out of range"):
        fh.wire(min_class_count=0)
