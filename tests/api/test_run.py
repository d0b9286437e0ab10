"""`fedhead.run` and what it takes: federations, models, methods, settings, and what it refuses."""

import functools
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedhead
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe


class Idle(fedhead.Executor):
    """Runs nothing."""


class Own(fedhead.Executor):
    """The loop under another name."""

    def train(self, job: fedhead.Job) -> list[fedhead.Reply]:
        return fedhead.Loop().train(job)


def net(shape: Any, width: int = 4) -> fedhead.FeatureExtractor:
    return fedhead.FeatureExtractor(nn.Linear(2, width), width)


def recall(confusion: Any, of: int = 0) -> float:
    return float(confusion[of, of] / confusion[of].sum())


def test_objects_stand_for_names() -> None:
    x = np.random.RandomState(0).randn(24, 2)
    fed = fedhead.Federation.from_arrays(x[:16], np.arange(16) % 2, clients=2, test=(x[16:], np.arange(8) % 2))
    metrics = ["f1", functools.partial(recall, of=1), recall, lambda confusion: 1.0, lambda confusion: 2.0]
    settings: dict[str, Any] = {"rounds": 1, "device": "cpu", "metrics": metrics}
    result = fedhead.run(
        fed,
        [net, functools.partial(net, width=4)],
        fedhead.FedProx,
        stages=[fedhead.CCVR],
        uploads=[fedhead.Float16Upload],
        executor=Own,
        **settings,
    )
    assert list(result.metrics) == ["f1", "recall(of=1)", "recall", "lambda", "lambda_2"]
    assert (result.executor, list(result.stages)) == ("Own", ["ccvr"])
    assert result.metrics["lambda_2"] == 2.0
    assert fedhead.run(fed, net, "fedetf", executor=Own(), rounds=1, device="cpu").executor == "Own"
    assert fedhead.run(fed, fedhead.MODELS["mlp"], rounds=1, device="cpu", executor="loop").rows
    assert fedhead.run(fed, "mlp(hidden=[3], head=etf)", "fedetf", rounds=1, device="cpu", executor="loop").rows


def test_names_of_methods_and_stages_take_parameters() -> None:
    x = np.random.RandomState(0).randn(24, 2)
    fed = fedhead.Federation.from_arrays(x[:16], np.arange(16) % 2, clients=2, test=(x[16:], np.arange(8) % 2))
    settings: dict[str, Any] = {"rounds": 2, "local_epochs": 3, "batch_size": 8, "device": "cpu", "executor": "loop"}
    written = fedhead.run(fed, net, "fedprox(mu=5.0)", stages=["ccvr(samples=7)"], **settings)
    built = fedhead.run(fed, net, fedhead.FedProx(mu=5.0), stages=[fedhead.CCVR(samples=7)], **settings)
    plain = fedhead.run(fed, net, "fedprox", stages=["ccvr"], **settings)
    assert written.rows[-1]["test_loss"] == built.rows[-1]["test_loss"] != plain.rows[-1]["test_loss"]
    assert written.stages["ccvr"].metrics["test_loss"] == built.stages["ccvr"].metrics["test_loss"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"federation": (1, 2)}, "federation is tuple: make one first"),
        ({"model": None}, "model is NoneType: give a name"),
        ({"model": 3}, "model is int: give a name"),
        ({"model": [3]}, "int is int, no model: name a function"),
        ({"model": dict}, "dict is the class dict, no model: name a function"),
        ({"method": fedhead.CCVR}, "CCVR is no method: let CCVR inherit from fedhead.Method"),
        ({"method": 3}, "method is int: give a name or a method"),
        ({"stages": "ccvr"}, r"stages is 'ccvr': give a list, such as \['ccvr'\]"),
        ({"stages": [fedhead.FedProx]}, "FedProx is no stage: let FedProx inherit from fedhead.Stage"),
        ({"metrics": "f1"}, r"metrics is 'f1': give a list, such as \['f1'\]"),
        ({"uploads": [dict]}, "dict is no upload: let dict inherit from fedhead.Upload"),
        ({"metrics": [lambda a, b: 0]}, r"lambda takes \(a, b\): name its arguments after what it needs: confusion"),
        ({"executor": dict}, "dict is no executor: let dict inherit from fedhead.Executor"),
        ({"executor": Idle}, r"Idle: Idle has to define train\(self, job\)"),
    ],
)
def test_things_of_the_wrong_kind_are_refused(given: dict[str, Any], says: str) -> None:
    fed = fedhead.Federation.from_arrays(np.zeros((8, 2)), np.arange(8) % 2, clients=2)
    with pytest.raises(BadInput, match=says):
        fedhead.run(**{"federation": fed, "model": "mlp", "rounds": 1, **given})


def test_what_is_printed_says_how_much_there_is_and_how_well_it_went() -> None:
    federation = fedhead.Federation.load("digits", "iid", clients=2, subset=60)
    assert repr(federation) == (
        "Federation(digits, iid: 2 clients with 60 samples of shape (1, 8, 8), 10 classes, 360 test samples)"
    )
    result = fedhead.run(federation, "mlp", rounds=1, device="cpu", executor="loop")
    shown = f"Result(accuracy={round(result.accuracy or 0, 2)}, personal=None, stages={{}}, rounds=1, executor='loop')"
    assert repr(result) == shown


def test_an_executor_must_answer_for_every_client() -> None:
    class Forgets(fedhead.Executor):
        def train(self, job: fedhead.Job) -> list[fedhead.Reply]:
            return fedhead.Loop().train(job)[1:]

    federation = fedhead.Federation.load("digits", clients=3, subset=60)
    with pytest.raises(BadInput, match="executor Forgets: train returned 2 replies for 3 clients"):
        fedhead.run(federation, "mlp", rounds=1, executor=Forgets(), device="cpu")


def test_a_head_and_a_model_that_can_not_be_built_are_named() -> None:
    def wide(features: int, classes: int) -> nn.Module:
        return nn.Linear(features, classes + 1)

    def leaves(shape: tuple[int, ...]) -> nn.Module:
        raise SystemExit(0)

    with pytest.raises(BadInput, match=r"head .*wide.* has 11 outputs for 10 classes"):
        fedhead.build("mlp", (64,), 10, head=wide)
    with pytest.raises(BadInput, match=r"model .*leaves.*: the function raised SystemExit"):
        fedhead.build(leaves, (64,), 10)


def test_masked_values_and_labels_changed_by_a_partition_are_no_data() -> None:
    x, y = np.random.RandomState(0).randn(12, 3), np.arange(12) % 3
    with pytest.raises(BadInput, match="x has masked values"):
        fedhead.Federation.from_arrays(np.ma.masked_greater(x, 0), y, clients=2)

    def changes(y: Any, clients: int, rng: Any) -> list[Any]:
        y[:] = 0
        return list(np.array_split(np.arange(len(y)), clients))

    federation = fedhead.Federation.from_arrays(x, y, partition=changes, clients=2)
    assert federation.counts().sum(0).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda confusion: "high", "metric lambda returned str: return one number"),
        (lambda confusion: confusion, "metric lambda returned ndarray: return one number"),
        (lambda confusion: 1 / 0, "metric lambda: the function raised ZeroDivisionError"),
    ],
)
def test_a_metric_that_is_no_number_is_found_before_training(metric: Any, words: str) -> None:
    federation = fedhead.Federation.load("digits", clients=2, subset=60)
    trained: list[Any] = []
    with pytest.raises(BadInput, match=words):
        fedhead.run(federation, "mlp", rounds=1, metrics=[metric], on_round=trained.append)
    assert not trained


@pytest.mark.parametrize("wrong", [{"resume": 5}, {"precision": 3}, {"executor": "nope"}])
def test_what_is_of_another_kind_is_one_line(wrong: dict[str, Any]) -> None:
    federation = fedhead.Federation.load("digits", clients=2, subset=60)
    with pytest.raises(BadInput, match=next(iter(wrong))):
        fedhead.run(federation, "mlp", rounds=1, **wrong)


@pytest.mark.parametrize(("name", "near"), [("test_size", "test"), ("random_state", "seed"), ("n_clients", "clients")])
def test_a_word_of_another_library_for_the_data_is_answered_with_ours(name: str, near: str) -> None:
    with pytest.raises(
        BadInput, match=rf"unknown argument of Federation.from_arrays '{name}': did you mean '{near}'\?"
    ):
        fedhead.Federation.from_arrays(torch.randn(4, 2), [0, 1, 0, 1], **{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("epochs", "local_epochs"),
        ("batch", "batch_size"),
        ("learning_rate", "lr"),
        ("num_rounds", "rounds"),
        ("strategy", "method"),
        ("model_name", "model"),
        ("fraction_fit", "participation"),
        ("random_state", "seed"),
        ("stage", "stages"),
    ],
)
def test_a_word_of_another_library_is_answered_with_ours(name: str, near: str) -> None:
    with pytest.raises(BadInput, match=rf"unknown argument of run '{name}': did you mean '{near}'\? See help\("):
        fedhead.run(None, "mlp", **{name: 3})  # type: ignore[arg-type]  # refused before it is used
    with pytest.raises(BadInput, match=rf"unknown key '{name}': did you mean '{near}'\? See fedhead ls keys"):
        Recipe(dataset="digits").override([f"{name}=3"])


def test_a_federation_answers_words_of_other_libraries() -> None:
    for name, near in (("num_clients", "clients"), ("alpha", "partition"), ("random_state", "seed")):
        with pytest.raises(BadInput, match=rf"unknown argument of load '{name}': did you mean '{near}'\?"):
            fedhead.Federation.load("digits", **{name: 3})


def test_the_docstring_begins_with_five_arguments_and_groups_all_others_in_the_order_of_the_signature() -> None:
    sections = re.findall(r"^Args:(.*)\n((?:    .*\n)*)", inspect.getdoc(fedhead.run) or "", re.MULTILINE)
    names = [re.findall(r"^    (\w+):", text, re.MULTILINE) for _, text in sections]
    assert names[0] == ["federation", "model", "method", "rounds", "local_epochs"]
    assert all(title for title, _ in sections[1:])
    assert [name for group in names for name in group] == list(inspect.signature(fedhead.run).parameters)


def test_threads_follow_the_models_size_and_are_restored(tmp_path: Path) -> None:
    fed = fedhead.Federation.from_arrays(np.eye(4), [0, 1, 0, 1], clients=2)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for out in (None, tmp_path / "run"):
            fedhead.run(
                fed, "mlp(hidden=[4])", rounds=1, out=out, on_round=lambda _: seen.append(torch.get_num_threads())
            )
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2, 1, 2]
