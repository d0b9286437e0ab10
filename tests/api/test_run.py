"""`fedhead.run` and what it takes: federations, models, methods, settings, and what it refuses."""

import functools
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedhead
from fedhead.core.errors import BadInput


class Idle(fedhead.Executor):
    """Runs nothing."""


class Own(fedhead.Executor):
    """The loop under another name."""

    def run(self, job: fedhead.Job) -> list[fedhead.Reply]:
        return fedhead.Loop().run(job)


def net(shape: Any, width: int = 4) -> fedhead.Body:
    return fedhead.Body(nn.Linear(2, width), width)


def recall(confusion: Any, of: int = 0) -> float:
    return float(confusion[of, of] / confusion[of].sum())


def test_objects_stand_for_names() -> None:
    x = np.random.RandomState(0).randn(24, 2)
    fed = fedhead.Federation.from_arrays(x[:16], np.arange(16) % 2, clients=2, test=(x[16:], np.arange(8) % 2))
    metrics = ["accuracy", functools.partial(recall, of=1), recall, lambda confusion: 1.0, lambda confusion: 2.0]
    settings: dict[str, Any] = {"rounds": 1, "device": "cpu", "metrics": metrics}
    result = fedhead.run(
        fed,
        [net, functools.partial(net, width=4)],
        fedhead.FedProx,
        stages=[fedhead.CCVR],
        uploads=[fedhead.Half],
        executor=Own,
        **settings,
    )
    assert list(result.metrics) == ["accuracy", "recall(of=1)", "recall", "lambda", "lambda_2"]
    assert (result.executor, list(result.stages)) == ("Own", ["ccvr"])
    assert result.metrics["lambda_2"] == 2.0
    assert fedhead.run(fed, net, "fedetf", executor=Own(), rounds=1, device="cpu").executor == "Own"
    assert fedhead.run(fed, fedhead.MODELS["mlp"], rounds=1, device="cpu", executor="loop").history
    assert fedhead.run(fed, "mlp(hidden=[3], head=etf)", "fedetf", rounds=1, device="cpu", executor="loop").history


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
        ({"metrics": "macro_f1"}, r"metrics is 'macro_f1': give a list, such as \['macro_f1'\]"),
        ({"uploads": [dict]}, "dict is no upload: let dict inherit from fedhead.Upload"),
        ({"metrics": [lambda a, b: 0]}, r"lambda takes \(a, b\), a metric is called with \(confusion\)"),
        ({"executor": dict}, "dict is no executor: let dict inherit from fedhead.Executor"),
        ({"executor": Idle}, r"Idle: Idle has to define run\(self, job\)"),
    ],
)
def test_things_of_the_wrong_kind_are_refused(given: dict[str, Any], says: str) -> None:
    fed = fedhead.Federation.from_arrays(np.zeros((8, 2)), np.arange(8) % 2, clients=2)
    with pytest.raises(BadInput, match=says):
        fedhead.run(**{"federation": fed, "model": "mlp", "rounds": 1, **given})


def test_what_is_printed_says_how_much_there_is_and_how_well_it_went() -> None:
    federation = fedhead.Federation.load("digits", "iid", clients=2, samples=60)
    assert repr(federation) == (
        "Federation(digits, iid: 2 clients with 60 samples of shape (1, 8, 8), 10 classes, 360 test samples)"
    )
    result = fedhead.run(federation, "mlp", rounds=1, device="cpu", executor="loop")
    shown = f"Result(accuracy={round(result.accuracy or 0, 2)}, personal=None, stages={{}}, rounds=1, executor='loop')"
    assert repr(result) == shown
