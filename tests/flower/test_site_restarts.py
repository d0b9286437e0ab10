"""A site that is restarted in any phase of a run, and sites without some class: the others go on to the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from clinic_sites import project
from clinics import NAMES, clinic
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from tiers import quick

import fedhead as fh
from fedhead.core.tree.treefile import load_tree
from fedhead.flower import factory
from fedhead.flower.server_run import evaluate, serve
from fedhead.flower.wire import wire
from fedhead.testing.inprocess import InProcess

WORDS = ("method=scaffold", "stages=[finetune]", "rounds=2")
PHASES = ["statistics", "hello", "work train", "test train", "work finetune", "test finetune", "model finetune"]


def phase(message: Message) -> str:
    header, _ = wire.unpack(message.content)
    kind = str(header["kind"])
    return kind if kind in ("statistics", "hello") else f"{kind} {header['algorithm']}"


def server_state(run: Path) -> dict[str, torch.Tensor]:
    return load_tree(run / "checkpoint.safetensors")[0]["server"].leaves()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a run in which nothing happens."""
    made, grid = project(tmp_path_factory.mktemp("undisturbed"), *WORDS)
    serve(made.server(), grid, log=lambda line: None)
    return made.path / "run"


@pytest.mark.parametrize("lost", quick([True, False], False), ids=["before its work", "after its work"])
@pytest.mark.parametrize("when", quick(PHASES, "statistics", "work train", "test train"))
def test_a_restarted_site(when: str, lost: bool, undisturbed: Path, tmp_path: Path) -> None:
    made, grid = project(tmp_path, *WORDS)
    text = made.server_file.read_text().replace("quorum: 2", "quorum: 3")  # no round without it
    made.server_file.write_text(text.replace("join_seconds: 0.1", "join_seconds: 120"))
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "share_model: true\n")
    grid.nodes = {10 + k: factory.site(file) for k, file in enumerate(made.sites().values())}
    killed: list[str] = []

    def kill(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | Error:
        if killed or phase(message) != when:
            return honest()
        killed.append(when)
        if not lost:
            honest()  # its state and its ledger are written, but the reply is lost
        grid.nodes[11] = factory.site(made.sites()["south"])  # a new process: only its files are left
        return Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")  # as the link says after a minute

    grid.faults[11] = kill
    found = serve(made.server(), grid, log=lambda line: None)
    if when.startswith("model"):
        evaluate(made.server(), grid, lambda line: None)
    assert killed == [when]
    expected, run = server_state(undisturbed), made.path / "run"
    for name, t in server_state(run).items():
        torch.testing.assert_close(t, expected[name], atol=0, rtol=0)
    rows, others = fh.load(run).rows, fh.load(undisturbed).rows
    if when != "test train":
        assert [row["clients"] for row in rows] == [row["clients"] for row in others]
    else:
        assert [row["clients"][1] is None for row in rows] == [True, False]
    tuned = found["stages"]["finetune"]["clients"]
    known = fh.load(undisturbed).stages["finetune"].metrics["clients"]
    assert tuned == ([known[0], None, known[2]] if when == "test finetune" else known)


def test_a_site_without_a_class(tmp_path: Path) -> None:
    made, _ = project(tmp_path, "stages=[lda]", "metrics=[f1]")
    path = tmp_path / "south.csv"
    pd.read_csv(path).assign(outcome="alive").to_csv(path, index=False)
    for file in made.sites().values():
        file.path.write_text(file.path.read_text() + "allow_wide_features: true\n")
    grid = InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
    found = serve(made.server(), grid, log=lambda line: None)
    frames: dict[str, Any] = {name: clinic(k).drop(columns="patient") for k, name in enumerate(NAMES)}
    frames["south"]["outcome"] = "alive"
    schema = tmp_path / "schema.yaml"
    whole = fh.Federation.from_clients(frames, client_test=0.25, schema=schema, missing="mean", normalize="standard")
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 8, "lr": 0.1, "executor": "loop", "device": "cpu"}
    expected = fh.run(whole, "mlp(hidden=[6])", stages=["lda"], **settings)
    assert found["personal"] == pytest.approx(expected.personal, abs=1e-10)
    assert found["stages"]["lda"]["personal"] == pytest.approx(expected.stages["lda"].personal, abs=1e-10)
