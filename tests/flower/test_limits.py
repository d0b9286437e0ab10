"""One site's message can't end the run: it is held against its schema and limits before anything is made of it."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from simulations import make_world, run
from small import CLASSES, federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.system.version import VERSION
from fedhead.core.tree.tree import Tree, Weights
from fedhead.deploy.project import Project
from fedhead.engine.policies.reply_check import Refused
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.flower import factory
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import read_response, to_json
from fedhead.methods import METHODS
from fedhead.models import build
from fedhead.testing.inprocess import Fault, InProcess, InProcessFederation

SETTINGS = {"rounds": 1, "local": LocalTraining(epochs=1, batch_size=4)}
HOSTILE = "site-3"


def world(folder: Path, method: str = "fedavg", **settings: Any) -> InProcessFederation:
    return make_world(federation(), {"own": network("group")}, METHODS[method](), SETTINGS | settings, folder)


def kind_of(message: Message) -> str:
    return str(json.loads(str(message.content.config_records["fedhead"]["header"]))["kind"])


def in_header(kind: str, **entries: Any) -> Fault:
    """A site that puts something else into the header of its responses of a kind."""

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        made = honest()
        if kind_of(message) != kind:
            return made
        top = dict(made.config_records["fedhead"])
        header = json.loads(str(top["header"])) | entries
        made["fedhead"] = ConfigRecord({**top, "header": json.dumps(header)})
        return made

    return fault


def in_description(change: Callable[[Any], None]) -> Fault:
    """A site that describes its tensors otherwise."""

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        made = honest()
        if kind_of(message) != "work":
            return made
        top = dict(made.config_records["fedhead"])
        trees = json.loads(str(top["trees"]))
        change(trees)
        made["fedhead"] = ConfigRecord({**top, "trees": json.dumps(trees)})
        return made

    return fault


def carried_out(folder: Path, fault: Fault, method: str = "fedavg") -> tuple[FinishedRun, list[str]]:
    here, said = world(folder, method), []
    grid = here.grid()
    grid.faults[103] = fault
    return run(here.transport(grid, said)), said


def no_elements_many_sides(trees: Any) -> None:
    trees["send"]["tensors"][0][2] = [0, 2**62, 4]


def a_million_tensors(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
    made = honest()
    if kind_of(message) == "work":
        top = dict(made.config_records["fedhead"])
        tensors = ", ".join(f'["x{i}", "float32", [0]]' for i in range(10**6))
        trees = str(top["trees"]).replace('"tensors": [', f'"tensors": [{tensors}, ')
        made["fedhead"] = ConfigRecord({**top, "trees": trees})
    return made


def sides_that_are_text(trees: Any) -> None:
    trees["send"]["tensors"][0][2] = ["9" * 4000]


def other_buffers(trees: Any) -> None:
    trees["send"]["tree"]["entries"][0][1]["buffers"] = ["classifier.bias"]


def more_bytes(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
    """A record with more bytes than its message describes."""
    made = honest()
    if kind_of(message) == "work":
        made["fedhead"] = ConfigRecord({**made.config_records["fedhead"], "tensors": b"\0" * 10**6})
    return made


def a_tree_in_a_test(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
    made = honest()
    if kind_of(message) != "test":
        return made
    header, _ = wire.unpack(made)
    return wire.pack(header, {"send": Tree(x=torch.zeros(3))})


def no_message(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
    return RecordDict({"fedhead": ConfigRecord({"format": [1], "header": 7})})


IN_A_ROUND: dict[str, Fault] = {
    "samples": in_header("work", samples=10**400),
    "samples of another hello": in_header("work", samples=10**9),
    "round": in_header("work", round=10**400),
    "a loss whose mean with the others' is infinite": in_header("work", train_loss=1e308),
    "a long header": in_header("work", reference="x" * 10**6),
    "shape": in_description(no_elements_many_sides),
    "sides": in_description(sides_that_are_text),
    "count": a_million_tensors,
    "buffers": in_description(other_buffers),
    "bytes": more_bytes,
}
IN_A_TEST: dict[str, Fault] = {
    "accuracy": in_header("test", accuracy=10**400),
    "accuracy beyond 100": in_header("test", accuracy=101.0),
    "a loss whose mean with the others' is infinite": in_header("test", loss=1e308),
    "text in steps": in_header("test", steps={"a": "b"}),
    "steps nobody asked for": in_header("test", steps={"a": 50.0}),
    "steps beyond 100": in_header("test", steps={"a": 10**400}),
    "another site": in_header("test", site="site-1"),
    "an old round": in_header("test", round=0),
    "tensors": a_tree_in_a_test,
}
IN_A_HELLO: dict[str, Fault] = {
    "samples": in_header("hello", samples=10**400),
    "tests": in_header("hello", tests=-1),
    "another experiment": in_header("hello", experiment="00" * 8),
    "a model that is a list": in_header("hello", model={"model": ["own"] * 3}),
    "a model of many keys": in_header("hello", model={f"model.{i}": i for i in range(1000)}),
    "no message": no_message,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_A_ROUND)
def test_a_hostile_reply_costs_its_site_the_round(case: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    result, _ = carried_out(tmp_path, IN_A_ROUND[case])
    assert [list(row.get("failed", {})) for row in result.rows] == [[HOSTILE]]
    assert [row["participants"] for row in result.rows] == [3]
    assert len(result.rows[0]["failed"][HOSTILE]) < 1000
    assert time.monotonic() - begin < 30


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_A_TEST)
def test_a_hostile_test_is_not_recorded(case: str, tmp_path: Path) -> None:
    result, said = carried_out(tmp_path, IN_A_TEST[case])
    for row in result.rows:
        assert [accuracy is None for accuracy in row["clients"]] == [False, False, True, True, False]
        assert "steps" not in row
    assert any(f"site {HOSTILE} was not tested" in line for line in said)


@pytest.mark.parametrize("case", IN_A_HELLO)
def test_a_hostile_hello_leaves_its_node_out(case: str, tmp_path: Path) -> None:
    result, said = carried_out(tmp_path, IN_A_HELLO[case])
    assert [row["participants"] for row in result.rows] == [3]
    assert any("node 103" in line and "is left out: " in line for line in said)
    assert all(len(line) < 1000 for line in said)


def test_a_message_is_refused_before_its_description_is_read() -> None:
    blank = {"send": Tree(model=Weights({"w": torch.ones(2, 3)}))}
    good = wire.pack({"a": 1}, blank)
    _, found = wire.unpack(good, blank)
    assert torch.equal(found["send"]["model"]["w"], torch.ones(2, 3))
    top = dict(good.config_records["fedhead"])
    good["fedhead"] = ConfigRecord({**top, "trees": "[" * 10**7})
    with pytest.raises(Refused, match="10000000 characters"):
        wire.unpack(good, blank)
    more = wire.pack({"a": 1}, {**blank, "more": Tree()})
    with pytest.raises(Refused, match="more"):
        wire.unpack(more, blank)


# -- a site's own model -------------------------------------------------------------------------------
def project(folder: Path, keys: str = "") -> tuple[Project, InProcess]:
    words = ["subset=120", "rounds=1", "method=local", "model.feature_layer=8", "partition=dirichlet(100.0)"]
    made = Project.init(folder / "demo", "digits", ["north", "south"], words)
    text = made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3")
    made.server_file.write_text(text + keys)
    return made, InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})


LARGE = {
    "units": {"model": "mlp", "model.hidden": [10**9]},
    "features": {"model": "mlp", "model.feature_layer": 10**9},
    "layers": {"model": "mlp", "model.hidden": [20_000] * 5},
    "blocks": {"model": "densenet121", "model.blocks": [10**9]},
    "channels": {"model": "digitscnn", "model.channels": 2 * 10**6, "model.features": 1},
}


@pytest.mark.parametrize("case", LARGE)
def test_a_hello_that_asks_for_a_huge_model_is_refused_before_it_is_built(case: str, tmp_path: Path) -> None:
    made, grid = project(tmp_path, "max_model_mb: 30\n")
    file = made.server()
    spec = factory.run_spec(file)
    transport = factory.transport(file, spec, file.recipe_of_run(), None, grid, log=lambda line: None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInput, match="max_model_mb"):
        transport.dry_run.assign(1, LARGE[case])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    transport.dry_run.assign(1, {"model": "mlp", "model.hidden": [16]})


def test_a_model_that_cant_take_the_inputs_is_refused_in_the_hello(tmp_path: Path) -> None:
    models = {"own": network("group"), "other": build("mlp", (1, 3, 3), CLASSES)}
    here, said = make_world(federation(), models, METHODS["local"](), SETTINGS, tmp_path, own={3: "other"}), []
    result = run(here.transport(here.grid(), said))
    assert result.rows[0]["participants"] == 3
    assert any("site site-3: its model can't be used" in line for line in said)


def test_a_response_holds_only_what_its_schema_says() -> None:
    from fedhead.flower.wire.protocol import Response

    good = to_json(Response("north", VERSION, "ab" * 8, 1, "train"))
    assert read_response(good).site == "north"
    for bad in ({"samples": 2**60}, {"samples": 1.5}, {"left_out": [-1]}, {"left_out": "all"}, {"steps": {"a": -1.0}}):
        with pytest.raises(Refused):
            read_response({**good, **bad})
