"""Callbacks stop a run and choose its models by validation samples, never by test samples, also after a resumption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulations import RowFunction

import fedhead as fh
from fedhead.core.components.registry import instance
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.callbacks import CALLBACKS, Callback, CallbackList
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import evaluate
from fedhead.metrics.registry import find
from fedhead.recipes.recipe import load
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder

LOOP = Compute(executor="loop")  # what auto chooses depends on the time that each takes


def make(asked: Any, folders: Sequence[Path] = ()) -> Callback:
    return instance(CALLBACKS, asked, Callback, folders)


def federation(client_test: float | None = None) -> fh.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 5)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=240) > 0).astype(np.int64)
    test = (x[200:], y[200:])
    return fh.Federation.from_arrays(x[:200], y[:200], "iid", clients=4, test=test, client_test=client_test)


def asked(callback: fh.Callback, values: list[float | None], metrics: dict[str, Any] | None = None) -> list[Any]:
    """Return a callback's requests after each of a list of values."""
    watching = CallbackList([callback], metrics or {}, validated=True)
    metric = getattr(callback, "metric", "accuracy")
    rows = [{"round": n, **({} if v is None else {"validation": {metric: v}})} for n, v in enumerate(values, 1)]
    return [watching.after_round(row) for row in rows]


def rounds_of(action: Any, found: list[Any]) -> list[int]:
    return [number for number, each in enumerate(found, 1) if action in each]


# -- decisions ------------------------------------------------------------------------------------------
def test_early_stopping_waits_for_patience_evaluated_rounds() -> None:
    values = [50.0, 60.0, 59.0, None, 60.0, 60.5, 58.0, 57.0]
    assert rounds_of(fh.STOP, asked(fh.EarlyStopping(patience=2), values)) == [5, 8]
    assert rounds_of(fh.STOP, asked(fh.EarlyStopping(patience=4), values)) == []
    assert rounds_of(fh.STOP, asked(fh.EarlyStopping(patience=4, min_delta=1.0), values)) == [7, 8]
    assert rounds_of(fh.STOP, asked(fh.EarlyStopping("loss", patience=1), [2.0, 1.0, float("nan"), 1.5])) == [4]


def test_the_best_rounds_are_kept() -> None:
    assert rounds_of(fh.KEEP, asked(fh.BestModel(), [50.0, 40.0, 50.0, 51.0])) == [1, 4]
    assert rounds_of(fh.KEEP, asked(fh.BestModel("loss"), [2.0, 1.0, 3.0])) == [1, 2]
    assert rounds_of(fh.KEEP, asked(fh.BestModel("f1", mode="min"), [2.0, 3.0], find(["f1"]))) == [1]
    assert rounds_of(fh.KEEP, asked(fh.BestModel("ece"), [0.2, 0.1], find(["ece"]))) == [1, 2]  # the lower the better


@pytest.mark.parametrize(
    ("callback", "validated", "message"),
    [
        (fh.EarlyStopping(), False, r"test samples never decide\): set validation, such as validation=0.1"),
        (
            fh.BestModel("f1"),
            True,
            "best_model watches 'f1', which is not measured: add it to metrics, or watch one of",
        ),
        (fh.BestModel("own"), True, "set whether high or low values of own are good, mode=max"),
    ],
)
def test_what_can_t_be_watched_is_refused(callback: fh.Callback, validated: bool, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CallbackList([callback], find([own]), validated)
    CallbackList([fh.EarlyStopping("train_loss")], {}, validated=False)


def own(confusion: Any) -> float:
    return 0.0


def test_callbacks_are_written_with_parameters_and_may_be_ones_own(tmp_path: Path) -> None:
    assert make("early_stopping(metric=loss, patience=3)") == fh.EarlyStopping("loss", patience=3)
    assert make("best_model") == fh.BestModel()
    assert make(fh.BestModel) == fh.BestModel()
    (tmp_path / "own.py").write_text(
        "import fedhead as fh\n"
        "class AtThree(fh.Callback):\n"
        "    def after_round(self, row, memory):\n"
        "        memory['seen'] = memory.get('seen', 0) + 1\n"
        "        return fh.STOP if memory['seen'] == 3 else None\n"
    )
    found = make("own.py:AtThree", [tmp_path])
    assert len(fh.run(federation(), "mlp", rounds=5, callbacks=[found], executor="loop").rows) == 3
    for text, message in (
        ("early_stoping", "did you mean 'early_stopping'"),
        ("early_stopping(patience=0)", "patience: 0 is out of range, it must be at least 1"),
        ("own.py:Nothing", "has no 'Nothing'|no Nothing|Nothing"),
    ):
        with pytest.raises(BadInput, match=message):
            make(text, [tmp_path])


@dataclass(frozen=True)
class Wrong(fh.Callback):
    """Returns what it must not."""

    what: str = "true"

    def after_round(self, row: Any, memory: dict[str, Any]) -> Any:
        """Return it."""
        return {"true": True}[self.what]


def test_what_a_callback_must_not_return_is_named() -> None:
    with pytest.raises(BadInput, match=r"callback Wrong returned True: return fedhead\.STOP, fedhead\.KEEP or None"):
        asked(Wrong(), [1.0])
    with pytest.raises(BadInput, match="callback Wrong: the function raised KeyError"):
        asked(Wrong("other"), [1.0])


@dataclass(frozen=True)
class Curious(fh.Callback):
    """Reads an entry of the record."""

    entry: str = "accuracy"

    def after_round(self, row: Any, memory: dict[str, Any]) -> Any:
        """Keep the names of the entries, and read one."""
        memory["seen"] = sorted(row)
        row[self.entry]


def test_callbacks_do_not_see_test_scores() -> None:
    settings: dict[str, Any] = {"rounds": 2, "device": "cpu", "metrics": ["f1"], "validation": 0.2}
    snapshots: list[fh.Snapshot] = []
    result = fh.run(federation(0.2), "mlp", callbacks=[Curious("train_loss")], on_round=snapshots.append, **settings)
    seen = set(snapshots[-1].memories[0]["seen"])
    tested = set(evaluate(result.trained.with_data(), result.trained.with_data().context(2), find(["f1"]), final=True))
    assert {"accuracy", "personal", "metrics"} <= tested <= set(result.rows[-1]) | {"confusion"}
    assert not seen & tested
    assert {"round", "train_loss", "validation"} <= seen
    with pytest.raises(BadInput, match=r"reads row\['accuracy'\].*set validation=0.1 and read row\['validation'\]"):
        fh.run(federation(), "mlp", callbacks=[Curious()], rounds=1, device="cpu")


# -- validation samples -----------------------------------------------------------------------------------
def test_validation_samples_are_a_share_of_each_clients_training_samples_drawn_by_key() -> None:
    plain = federation(client_test=0.2)
    made = plain.with_validation(0.25, seed=3)
    assert made.validation is not None
    for before, rows, held, tested in zip(
        plain.indices, made.indices, made.validation, plain.client_test or [], strict=True
    ):
        assert len(held) == int(0.25 * len(before))
        assert sorted([*rows, *held]) == sorted(before)
        assert not set(held) & set(tested)
    assert all(map(np.array_equal, made.validation, plain.with_validation(0.25, seed=3).validation or []))
    assert not all(map(np.array_equal, made.validation, plain.with_validation(0.25, seed=4).validation or []))
    fewer = replace(
        plain, indices=plain.indices[1:], client_test=None
    )  # a client's own samples don't depend on the others
    assert len(fewer.with_validation(0.25, seed=3).indices) == 3
    with pytest.raises(BadInput, match=r"validation: 0\.001 of the largest client's 40 samples is none"):
        fh.run(plain, "mlp", rounds=1, validation=0.001)


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_what_is_watched_is_measured_on_the_validation_samples(executor: str) -> None:
    seen = []

    def count(confusion: Any) -> float:
        seen.append(int(confusion.sum()))
        return float(confusion.trace())

    result = fh.run(
        federation(0.2), "mlp", rounds=1, metrics=[count, "worst_client"], validation=0.25, executor=executor
    )
    found = result.rows[0]["validation"]
    assert seen.count(40) == 2  # 4 clients with 10 of their 40 samples each, all at once, and the global test set
    assert found["count"] == pytest.approx(found["accuracy"] / 100 * 40)
    assert {"accuracy", "loss", "personal", "personal_loss", "count", "worst_client"} == found.keys()
    assert "validation" not in fh.run(federation(), "mlp", rounds=1, executor=executor).rows[0]


# -- runs -------------------------------------------------------------------------------------------------
def test_the_run_ends_with_the_kept_round_and_stages_begin_with_it() -> None:
    states: dict[int, torch.Tensor] = {}

    def remember(now: fh.Snapshot) -> None:
        states[now.round] = now.server["model"]["classifier.weight"].clone()

    def last_is_worse(confusion: Any) -> float:  # best in round 2: two calls per round, of test and validation samples
        calls.append(1)
        return [0, 1, 5, 3, 2][(len(calls)) // 2]

    calls: list[int] = []
    best = fh.BestModel("last_is_worse", mode="max")
    result = fh.run(
        federation(),
        "mlp",
        rounds=4,
        metrics=[last_is_worse],
        validation=0.2,
        callbacks=[best],
        on_round=remember,
        executor="loop",
    )
    assert (len(result.rows), result.best_round) == (4, 2)
    assert result.weights is not None
    assert torch.equal(result.weights["classifier.weight"], states[2])
    assert result.accuracy == result.rows[1]["accuracy"]
    assert result.test_loss == result.rows[1]["test_loss"]


def stop(now: fh.Snapshot) -> Any:
    return fh.STOP if now.round == 2 else None


def test_on_round_may_stop_the_run(tmp_path: Path) -> None:
    for out in (None, tmp_path / "run"):
        result = fh.run(federation(), "mlp", rounds=5, on_round=stop, out=out, executor="loop")
        assert len(result.rows) == 2
    at_the_end = fh.run(federation(), "mlp", rounds=2, on_round=stop, executor="loop")
    assert at_the_end.stopped is None
    folder = RunFolder.open(tmp_path / "run")
    found = folder.result()
    assert found is not None
    assert (found["stopped"], found["trained_rounds"], found["rounds"]) == ("on_round", 2, 5)
    assert "rounds=2, executor='loop', stopped='after round 2 of 5 by on_round'" in repr(result)
    assert repr(fh.load(tmp_path / "run")) == repr(result)


def test_more_rounds_of_a_stopped_run_are_refused_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"out": tmp_path / "run", "executor": "loop"}
    fh.run(federation(), "mlp", rounds=5, on_round=stop, **settings)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    fh.run(federation(), "mlp", rounds=9, resume=True, **settings)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    warning = f"{tmp_path / 'run'} stopped after round 2 of 5 by on_round: no further round is trained"
    assert len([line for line in caplog.messages if line.startswith(warning)]) == 1
    planned = []

    class Planned(fh.Logger):
        def start(self, run: Any) -> None:
            planned.append(run.recipe["rounds"])

        def log_result(self, result: Any) -> None:
            planned.append(result["rounds"])

    settings |= {"stages": ["ncm"], "loggers": [Planned()]}
    result = fh.run(federation(), "mlp", rounds=9, resume=True, **settings)
    assert planned == [5, 5]
    assert (result.stopped, list(result.stage_rows)) == ("after round 2 of 5 by on_round", ["ncm"])
    loaded = fh.load(tmp_path / "run")
    assert (loaded.stopped, loaded.recipe.rounds) == (result.stopped, 5)


def test_a_stop_at_a_round_that_is_not_evaluated_is_said_in_every_run(caplog: pytest.LogCaptureFixture) -> None:
    for number, lines in ((2, 0), (3, 1), (3, 2)):
        settings: dict[str, Any] = {"rounds": 5, "evaluate_every": 2, "executor": "loop"}
        fh.run(federation(), "mlp", on_round=lambda now, n=number: fh.STOP if now.round == n else None, **settings)
        assert len([m for m in caplog.messages if "stopped at round 3, which is not evaluated" in m]) == lines


@dataclass(frozen=True)
class At(fh.Callback):
    """Requests an action after one round."""

    round: int
    action: Any

    def after_round(self, row: Any, memory: Any) -> Any:
        return self.action if row["round"] == self.round else None


@pytest.mark.parametrize("action", [fh.STOP, fh.KEEP, fh.STOP | fh.KEEP])
def test_a_round_with_the_final_models_is_evaluated(action: Any) -> None:
    settings: dict[str, Any] = {"rounds": 6, "evaluate_every": 4, "executor": "loop", "lr": 0.3}
    made = federation(client_test=0.3)
    result = fh.run(made, "mlp", "ditto", callbacks=[At(3, action)], **settings)
    assert made.test is not None
    assert result.accuracy == pytest.approx(result.evaluate(made.test.x, made.test.y)["accuracy"])
    rows = {row["round"]: row for row in result.rows}
    assert next(number for number, row in rows.items() if row.get("accuracy") is not None) == 3
    assert result.personal == rows[3]["personal"]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.slow
def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    recipe = load(
        "digits",
        [
            "rounds=8",
            "subset=300",
            "clients=3",
            "model.hidden=[8]",
            "lr=0.1",
            "method=ditto",
            "client_test=0.2",
            "validation=0.2",
            "callbacks=[early_stopping(metric=loss, min_delta=0.4, patience=2), best_model(min_delta=25)]",
            "stages=[finetune]",
        ],
    )
    whole = execute(recipe, tmp_path / "whole", LOOP)
    assert whole["stopped"] == "early_stopping"
    assert whole["best_round"] < whole["trained_rounds"] < 8

    for number in range(1, whole["trained_rounds"] + 1):

        def kill(row: Any, number: int = number) -> None:
            if row["round"] == number:
                raise Killed

        with pytest.raises(Killed):
            execute(recipe, tmp_path / "run", LOOP, resume=number > 1, observers=[RowFunction(kill)])
    found = execute(recipe, tmp_path / "run", LOOP, resume=True)
    timings = {"run", "seconds", "stages", "executor"}
    assert {k: v for k, v in found.items() if k not in timings} == {k: v for k, v in whole.items() if k not in timings}
    assert found["stages"]["finetune"]["clients"] == whole["stages"]["finetune"]["clients"]
    rows = [[{**row, "seconds": 0} for row in RunFolder.open(tmp_path / name).metrics()] for name in ("whole", "run")]
    assert rows[0] == rows[1]
    loaded = [fh.load(tmp_path / name) for name in ("whole", "run")]
    assert loaded[0].best_round == loaded[1].best_round == whole["best_round"]
    assert loaded[0].weights is not None
    assert loaded[1].weights is not None
    assert all(torch.equal(t, loaded[1].weights[name]) for name, t in loaded[0].weights.items())
    assert loaded[0].evaluate(*_test_samples())["accuracy"] == pytest.approx(whole["accuracy"])


def _test_samples() -> tuple[Any, Any]:
    held = fh.Federation.load("digits").test
    assert held is not None
    return held.x, held.y
