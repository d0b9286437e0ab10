"""Every option of every method and stage does something: a changed value changes what a run leaves behind."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from simulations import make_simulation
from small import federation, network
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods import METHODS
from fedhead.stages import STAGES

ROUNDS = 3
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
Left = dict[str, Tensor]

# (who, option) -> what it is set to, and what else is needed for it to matter
CHANGES: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("clsprox", "mu"): (1.0, {}),
    ("ditto", "lam"): (0.1, {}),
    ("fedavgm", "beta"): (0.5, {}),
    ("fedavgm", "damped"): (False, {}),
    ("fedclassavg", "rho"): (1.0, {}),
    ("fedclassavg", "temperature"): (0.5, {}),
    ("fedclassavg", "base_temperature"): (0.7, {}),
    ("fedclassavg", "normalize"): (False, {}),
    ("fedclassavg", "proximal"): ("mean_squared", {}),
    ("fedclassavg", "ca"): (False, {}),
    ("fedclassavg", "pr"): (False, {}),
    ("fedclassavg", "cl"): (False, {}),
    ("fedclassavg", "share"): ("all", {}),
    ("feddyn", "alpha"): (0.5, {}),
    ("fedetf", "gamma"): (0.5, {}),
    ("fedetf", "absent"): ("mask", {}),
    ("fedetf", "balanced_loss"): (False, {}),
    ("fedetf", "learnable_temperature"): (False, {}),
    ("fednh", "rho"): (0.5, {}),
    ("fednh", "average_over"): ("samples", {}),
    ("fedproto", "lam"): (0.1, {}),
    ("fedproto", "predict_by"): ("logits", {}),
    ("fedproto", "average_over"): ("clients", {}),
    ("fedprox", "mu"): (1.0, {}),
    ("fedrep", "head_epochs"): (None, {}),
    ("fedrep", "body_epochs"): (None, {}),
    ("fedrep", "untrained_head"): (True, {}),
    ("fedrod", "gamma"): (0.5, {}),
    ("fedrod", "absent"): ("mask", {}),
    ("fedrod_hyper", "gamma"): (0.5, {}),
    ("fedrod_hyper", "absent"): ("mask", {}),
    ("fedrod_hyper", "hidden"): (5, {}),
    ("ktpfl", "temperature"): (2.0, {}),
    ("ktpfl", "penalty"): (5.0, {}),
    ("ktpfl", "coefficient_lr"): (0.5, {}),
    ("ktpfl", "sharpness"): (1.0, {}),
    ("ktpfl", "distillation_epochs"): (2, {}),
    ("ktpfl", "distillation_batch"): (8, {}),
    ("ktpfl", "distillation_loss"): ("mse", {}),
    ("ktpfl", "initial_epochs"): (1, {}),
    ("ktpfl", "share"): ("all", {}),
    ("ktpfl", "transfer"): (0.5, {"share": "all"}),
    ("moon", "mu"): (5.0, {}),
    ("moon", "temperature"): (0.1, {}),
    ("scaffold", "server_lr"): (0.5, {}),
    ("ccvr", "samples"): (30, {}),
    ("ccvr", "proportional"): (True, {}),
    ("ccvr", "epochs"): (2, {}),
    ("ccvr", "lr"): (0.1, {}),
    ("ccvr", "momentum"): (0.0, {}),
    ("ccvr", "weight_decay"): (0.1, {}),
    ("ccvr", "batch_size"): (16, {}),
    ("ccvr", "tukey"): ("both", {}),
    ("ccvr", "power"): (0.25, {"tukey": "both"}),
    ("ccvr", "covariance"): ("diagonal", {}),
    ("ccvr", "rank"): (1, {"covariance": "low-rank", "rank": 3}),
    ("ccvr", "any_head"): (True, {"method": "fedetf"}),
    ("finetune", "full_lr"): (True, {}),
    ("finetune_ccvr", "full_lr"): (True, {}),
    ("finetune_ccvr", "samples"): (30, {}),
    ("finetune_ccvr", "epochs"): (2, {}),
    ("finetune_ccvr", "lr"): (0.1, {}),
    ("finetune_ccvr", "momentum"): (0.9, {}),
    ("finetune_ccvr", "weight_decay"): (0.1, {}),
    ("finetune_ccvr", "batch_size"): (16, {}),
    ("finetune_ccvr", "covariance"): ("full", {}),
    ("finetune_etf", "iterations"): (1, {}),
    ("finetune_etf", "epochs"): (1, {}),
    ("finetune_etf", "full_lr"): (True, {}),
    ("finetune_etf", "variant"): ("code", {}),
    ("finetune_etf", "record"): (False, {}),
    ("finetune_etf", "at"): ("extractor", {}),
    ("fedcof", "absent"): ("never", {"lacking": True}),
    ("fedcof", "gamma"): (3.0, {}),
    ("lda", "absent"): ("never", {"lacking": True}),
    ("lda", "shrinkage"): (0.9, {}),
    ("ncm", "absent"): ("never", {"lacking": True}),
    ("ncm", "metric"): ("cosine", {}),
    ("qda", "absent"): ("never", {"lacking": True}),
    ("qda", "shrinkage"): (0.9, {}),
    ("ridge", "absent"): ("never", {"lacking": True}),
    ("ridge", "alpha"): (50.0, {}),
    ("ridge", "intercept"): (False, {}),
    ("ridge", "normalize"): (True, {}),
    ("fedcof", "kept_for"): ("personal_head", {}),
    ("lda", "kept_for"): ("personal_head", {}),
    ("ncm", "kept_for"): ("personal_head", {}),
    ("qda", "kept_for"): ("personal_head", {}),
    ("ridge", "kept_for"): ("personal_head", {}),
    ("personal_lda", "absent"): ("never", {"lacking": True}),
    ("personal_lda", "shrinkage"): (0.9, {}),
    ("personal_lda", "validation"): (0.5, {}),
    ("personal_ridge", "absent"): ("never", {"lacking": True}),
    ("personal_ridge", "alpha"): (50.0, {}),
    ("personal_ridge", "intercept"): (False, {}),
    ("personal_ridge", "validation"): (0.5, {}),
    ("recalibrate", "per_class"): (2, {}),
    ("recalibrate", "epochs"): (2, {}),
    ("recalibrate", "lr"): (0.1, {}),
    ("recalibrate", "momentum"): (0.0, {}),
    ("recalibrate", "weight_decay"): (0.1, {}),
    ("recalibrate", "batch_size"): (16, {}),
    ("recalibrate", "any_head"): (True, {"method": "fedetf"}),
}
QUICK = {"ccvr": {"samples": 20}, "finetune_ccvr": {"epochs": 5}, "finetune_etf": {"iterations": 2}}


def options(algorithm: type[Algorithm]) -> list[str]:
    bound = {"method", "release"}  # set by `on_method` and `protect`, not by users
    return [f.name for f in dataclasses.fields(algorithm) if f.name not in bound]  # type: ignore[arg-type]  # all are dataclasses


def test_no_option_is_left_out() -> None:
    known = {(name, option) for name, kind in [*METHODS.items(), *STAGES.items()] for option in options(kind)}
    assert known == CHANGES.keys()


@cache
def trained(method: Method, lacking: bool = False) -> Simulation:
    """Train; with `lacking` no client holds samples of class 0."""
    model, fed = network("group", method.head), federation()
    if lacking:
        fed = dataclasses.replace(fed, indices=[rows[fed.train.y.numpy()[rows] > 0] for rows in fed.indices])
    simulation = make_simulation(fed, [model], method, rounds=ROUNDS, local=LOCAL, dtype=torch.float64)
    for number in range(1, ROUNDS + 1):
        train_round(simulation, number)
    return simulation


def left(simulation: Simulation, algorithm: Algorithm, server: Tree, states: Any, **more: Tensor) -> Left:
    """The states of server and clients, the global model, and what one client says of the test samples."""
    found = dict(server.leaves())
    found |= {f"{k}/{path}": t for k in simulation.clients.holders for path, t in states[k].leaves().items()}
    found |= dict((algorithm.global_model(server, simulation.task) or Tree()).leaves())
    job = simulation.jobs(algorithm, server, states, [3], ROUNDS + 1)[0]
    client, fed = job.program.client(job.inputs(0)), simulation.clients.federation
    assert fed.test is not None
    said = algorithm.predict(algorithm.personal_model(client), fed.transform(fed.test.x).double(), client)
    return found | {"said": said} | more


def after_rounds(method: Method) -> Left:
    simulation = trained(method)
    return left(simulation, method, simulation.server, simulation.states)


def after_stage(method: Method, stage: Stage, lacking: bool = False) -> Left:
    simulation = trained(method, lacking)
    try:
        result = run_stage(simulation, stage)
    except BadInput:
        return {}
    recorded = torch.tensor(len(result.metrics.get("steps", {})))  # type: ignore[arg-type]  # a row's values are objects
    return left(simulation, stage.on_method(method), result.server, result.states, recorded=recorded)


def differ(one: Left, other: Left) -> bool:
    if one.keys() != other.keys() or any(t.shape != other[name].shape for name, t in one.items()):
        return True
    return any(bool(((t - other[name]).abs() > 1e-6).any()) for name, t in one.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [key for key in CHANGES if key[0] in METHODS])
def test_every_option_of_a_method_matters(name: str, option: str) -> None:
    value, needs = CHANGES[name, option]
    usual, changed = METHODS[name](**needs), METHODS[name](**needs | {option: value})
    assert usual != changed
    assert differ(after_rounds(usual), after_rounds(changed))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [key for key in CHANGES if key[0] in STAGES])
def test_every_option_of_a_stage_matters(name: str, option: str) -> None:
    value, needs = CHANGES[name, option]
    settings = QUICK.get(name, {}) | needs
    lacking = settings.pop("lacking", False)
    method = METHODS[settings.pop("method", "fedetf" if STAGES[name].head else "fedavg")]()
    usual, changed = STAGES[name](**settings), STAGES[name](**settings | {option: value})
    assert usual != changed
    assert differ(after_stage(method, usual, lacking), after_stage(method, changed, lacking))


def test_the_same_options_leave_the_same() -> None:
    """Differences between options are not mere chance."""
    method = METHODS["fedproto"]()
    once = after_rounds(method)
    trained.cache_clear()
    assert not differ(once, after_rounds(method))
