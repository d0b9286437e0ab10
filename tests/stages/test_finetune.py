"""Personalization: the general rule for every method, and Algorithm 2 against a plain loop."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

import pytest
import torch
from plain import Plain
from simulations import make_simulation
from small import federation, network
from tiers import quick
from torch.nn import functional as F

from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import evaluate, run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import Carry, PhaseRun, train_eagerly
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.executors.stack.step_graphs import slot_key, without_rows
from fedhead.methods import METHODS
from fedhead.methods.ditto import Ditto
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedetf import FedETF
from fedhead.methods.fedprox import FedProx
from fedhead.methods.fedrep import FedRep
from fedhead.methods.scaffold import Scaffold
from fedhead.metrics.records import StageResult
from fedhead.models.split_model import load
from fedhead.stages import STAGES
from fedhead.stages.finetune import FineTune, FineTuneCCVR, FineTuneETF

CLIENTS = (0, 1, 3, 4)
STAGE = 3  # the round's number of a stage after two rounds


def trained(
    method: Method, norm: str = "group", rounds: int = 2, weight_decay: float = 0.0, **changes: Any
) -> Simulation:
    fed = dataclasses.replace(federation(), transform=Transform.named("none", "half"), **changes)
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.05, weight_decay=weight_decay), lr_decay=0.9)
    simulation = make_simulation(
        fed, [network(norm, method.head)], method, rounds=rounds, local=local, dtype=torch.float64
    )
    for number in range(1, rounds + 1):
        train_round(simulation.using(Loop()), number)
    return simulation


@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg"))
def test_every_method_can_be_fine_tuned_alike_on_both_executors(name: str) -> None:
    simulation = trained(METHODS[name](), "batch")
    loop, stack = (run_stage(simulation.using(executor), FineTune()) for executor in (Loop(), Stack()))
    assert loop.personal is not None
    assert loop.metrics["clients"] == stack.metrics["clients"]
    for k in CLIENTS:
        a, b = loop.states[k]["tuned"], stack.states[k]["tuned"]
        for leaf in a:
            torch.testing.assert_close(a[leaf], b[leaf], atol=1e-10, rtol=1e-10)
    assert loop.states[2].keys() == simulation.states[2].keys()  # a client without samples is left alone


@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
def test_a_full_learning_rate_is_that_of_the_first_round(executor: Executor) -> None:
    """One client with one batch: w - lr * gradient at each of the two steps, with 0.05 instead of 0.05 * 0.9²."""
    simulation = trained(FedAvg(), indices=[torch.arange(4).numpy()] + [torch.arange(0).numpy()] * 4)
    tuned = run_stage(simulation.using(executor), FineTune(full_lr=True)).states[0]["tuned"]
    fed, model = simulation.clients.federation, network("group").double()
    load(model, simulation.server["model"])
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in Plain(fed).batches(0, STAGE, 0, "stage:finetune"):
        model.zero_grad()
        F.cross_entropy(model(x).logits, y).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(tuned[name], p.detach(), atol=1e-12, rtol=1e-10)


def test_a_rate_that_a_method_keeps_from_the_schedule_stays_so() -> None:
    class Fixed(FedAvg):
        def phases(self, task: Task) -> tuple[Phase, ...]:
            return (Phase(self.loss, scheduled=False), Phase(self.loss))

    task = trained(FedAvg(), rounds=1).task
    for full, expected in ((False, [False, True]), (True, [False, False])):
        phases = FineTune(full_lr=full).tuned(Fixed().phases(task))
        assert [phase.scheduled for phase in phases] == expected


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.5), Scaffold()])
def test_the_general_rule_is_one_more_local_update(method: Method) -> None:
    """A run of one more round sends what the stage keeps: the same losses and corrections, but other batches."""
    simulation = trained(method, indices=[torch.arange(4).numpy()] + [torch.arange(0).numpy()] * 4)
    # one client with one full batch: every order of the samples gives the same two steps
    tuned = run_stage(simulation.using(Loop()), FineTune()).states[0]["tuned"]
    job = simulation.jobs(method, simulation.server, simulation.states, [0], STAGE)[0]
    (reply,) = Loop().train(job)
    for name, value in reply.send["model"].items():
        torch.testing.assert_close(tuned[name], value, atol=1e-12, rtol=1e-10)


def test_the_rounds_stay_as_they_were() -> None:
    simulation = trained(Ditto())
    before = {k: copy.deepcopy(s) for k, s in simulation.states.kept.items()}
    result = run_stage(simulation.using(Loop()), FineTune())
    for k, state in before.items():
        assert state.leaves().keys() == simulation.states.kept[k].leaves().keys()
        assert (state["personal"] - simulation.states[k]["personal"]).sq() == 0
        assert (result.states[k]["tuned"] - state["personal"]).sq() > 0  # Ditto's own model was trained further
    assert result.metrics["bytes_up"] == 0


def tune(variant: str, executor: Executor, norm: str = "group", iterations: int = 2) -> tuple[Simulation, StageResult]:
    simulation = trained(FedETF(), norm)
    stage = FineTuneETF(iterations=iterations, variant=variant)  # type: ignore[arg-type]  # a parameter of the test
    return simulation, run_stage(simulation.using(executor), stage)


def test_algorithm_2_against_a_plain_loop() -> None:
    simulation, result = tune("paper", Loop())
    lr, plain = 0.05 * 0.9**2, Plain(simulation.clients.federation)
    for k in CLIENTS:
        model = network("group", "etf").double()
        load(model, simulation.server["model"])
        beta = model.classifier.scale
        vectors = model.classifier.weight
        steps = [[*model.extractor.parameters(), beta]]
        steps += 2 * [[vectors, beta], [*model.projection.parameters(), beta]]
        for phase, parameters in enumerate(steps):
            optimizer = torch.optim.SGD(parameters, lr)
            for x, y in plain.batches(k, STAGE, phase, "stage:finetune_etf"):
                model.zero_grad()
                F.cross_entropy(model(x).logits, y).backward()
                optimizer.step()
        for name, p in model.named_parameters():
            torch.testing.assert_close(result.states[k]["tuned"][name], p.detach(), atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "epochs"), [("group", None), ("group", 2), ("batch", None)])
def test_the_public_codes_fine_tuning_against_a_plain_loop(norm: str, epochs: int | None) -> None:
    """A local round of FedETF, then V by plain SGD at 0.1 and p by SGD at 0.05 with momentum and weight decay."""
    simulation = trained(FedETF(), norm, weight_decay=0.01)
    result = run_stage(simulation.using(Loop()), FineTuneETF(iterations=2, epochs=epochs, variant="code", record=False))
    decay, fed = 0.9**2, simulation.clients.federation
    plain = Plain(fed)
    for k in CLIENTS:
        model = network(norm, "etf").double()
        load(model, simulation.server["model"])
        n = torch.bincount(fed.train.y[fed.indices[k]], minlength=3).double()
        vectors, layer = model.classifier.weight, list(model.projection.parameters())
        everything = [*model.extractor.parameters(), *layer, model.classifier.scale]
        steps = [torch.optim.SGD(everything, 0.05 * decay, weight_decay=0.01)]
        for _ in range(2):
            steps.append(torch.optim.SGD([vectors], 0.1))
            steps.append(torch.optim.SGD(layer, 0.05, momentum=0.9, weight_decay=0.01))
        for phase, optimizer in enumerate(steps):
            length = None if phase == 0 else epochs or 3
            for x, y in plain.batches(k, STAGE, phase, "stage:finetune_etf", epochs=length):
                model.zero_grad()
                logits = model(x).logits
                F.cross_entropy(logits + n.clamp_min(1).log() if phase == 0 else logits, y).backward()
                optimizer.step()
        tuned = result.states[k]["tuned"]
        for name, value in model.state_dict().items():
            if name in tuned:
                torch.testing.assert_close(tuned[name], value, atol=1e-10, rtol=1e-10)
        assert any(name.endswith("running_mean") for name in tuned) == (norm == "batch")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_fine_tuning_is_the_same_on_both_executors(variant: str) -> None:
    (_, loop), (_, stack) = tune(variant, Loop(), "batch"), tune(variant, Stack(), "batch")
    assert loop.metrics["steps"] == stack.metrics["steps"]
    for k in CLIENTS:
        for name, value in loop.states[k]["tuned"].items():
            torch.testing.assert_close(stack.states[k]["tuned"][name], value, atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("record", [True, False])
def test_turns_that_are_alike_can_share_a_graph(record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: set[str] = set()

    def train(phase_run: PhaseRun) -> Carry:
        keys.add(slot_key(without_rows(phase_run)))
        return train_eagerly(phase_run)

    monkeypatch.setattr("fedhead.executors.stack.stack.train_eagerly", train)
    simulation = trained(FedETF(), "batch")
    run_stage(simulation.using(Stack()), FineTuneETF(iterations=5, record=record))
    assert len(keys) == 3  # extractor, ETF and projection


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_the_public_codes_variant_leaves_the_temperature(variant: str) -> None:
    _, result = tune(variant, Loop())
    state = result.states[3]
    moved = state["tuned"]["classifier.scale"] != state["extractor"]["classifier.scale"]
    assert bool(moved) == (variant == "paper")
    assert (state["tuned"]["classifier.weight"] - state["classifier 1"]["classifier.weight"]).abs().max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_accuracy_is_recorded_after_each_step(variant: Literal["paper", "code"]) -> None:
    """Each step's figure is that of a stage which ends there."""
    simulation, result = tune(variant, Loop(), "batch")
    steps = result.metrics["steps"]
    turns = ["classifier 1", "projection 1", "classifier 2", "projection 2"]
    assert list(steps) == ["global", "extractor", *turns]
    assert steps["projection 2"] == result.personal
    untouched = evaluate(simulation, simulation.context(1), {})
    assert steps["global"] == untouched["personal"]
    for iterations, last in ((0, "extractor"), (1, "projection 1")):
        stage = FineTuneETF(iterations=iterations, variant=variant, record=False)
        shorter = run_stage(simulation.using(Loop()), stage)
        assert "steps" not in shorter.metrics
        look = FineTuneETF(variant=variant, at=last).on_method(simulation.experiment.method)
        job = simulation.jobs(look, result.server, result.states, [3], STAGE)[0]
        w = look.personal_model(job.program.client(job.inputs(0)))
        for name, value in shorter.states[3]["tuned"].items():
            torch.testing.assert_close(w[name], value, atol=1e-12, rtol=1e-12)


def test_algorithm_2_also_follows_other_methods_with_an_etf_head() -> None:
    fed = federation()
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    simulation = make_simulation(fed, [network("group", "etf")], Scaffold(), rounds=1, local=local)
    train_round(simulation.using(Loop()), 1)
    assert run_stage(simulation.using(Loop()), FineTuneETF(iterations=1)).personal is not None


@pytest.mark.slow
def test_ccvr_then_fine_tuning_begins_from_the_calibrated_model() -> None:
    simulation = trained(FedAvg())
    calibrated = run_stage(simulation.using(Loop()), FineTuneCCVR(epochs=5).prerequisite()).weights
    result = run_stage(simulation.using(Loop()), FineTuneCCVR(epochs=5))
    assert calibrated is not None
    assert result.weights is not None
    assert (result.weights - calibrated).sq() == 0
    by_hand = make_simulation(
        simulation.clients.federation,
        [network("group")],
        FedAvg(),
        rounds=2,
        local=simulation.task.local,
        dtype=torch.float64,
    )
    by_hand.server = simulation.server.replace(model=calibrated)
    job = by_hand.jobs(FedAvg(), by_hand.server, by_hand.states, [1], STAGE)[0]
    stage = FineTuneCCVR().on_method(FedAvg())
    job = dataclasses.replace(job, program=dataclasses.replace(job.program, algorithm=stage))
    schedules = simulation.jobs(stage, by_hand.server, by_hand.states, [1], STAGE)[0].schedules
    (reply,) = Loop().train(dataclasses.replace(job, schedules=schedules))
    assert (reply.keep["tuned"] - result.states[1]["tuned"]).sq() < 1e-20
    assert result.metrics["bytes_up"] > 0  # the statistics
    with pytest.raises(BadInput, match=r"finetune_ccvr can't follow fedrep"):
        FineTuneCCVR().on_method(FedRep())
    with pytest.raises(BadInput, match=r"ccvr"):
        run_stage(trained(FedETF()).using(Loop()), FineTuneCCVR())  # an ETF head is fixed


@pytest.mark.parametrize("stage", sorted(STAGES))
@pytest.mark.parametrize("name", quick(sorted(METHODS), "fedavg", "fedetf"))
def test_any_stage_follows_any_method_or_says_why_not(name: str, stage: str) -> None:
    simulation = trained(METHODS[name](), rounds=1)
    chosen = STAGES[stage](**{"finetune_etf": {"iterations": 1}, "ccvr": {"samples": 20}}.get(stage, {}))
    outcome, refusal = None, ""
    try:
        outcome = run_stage(simulation.using(Stack()), chosen)
    except BadInput as error:
        refusal = str(error)
    if outcome is None:
        assert stage != "finetune"
        assert refusal.startswith(("ccvr", "recalibrate", stage))
        return
    assert outcome.personal is not None
    assert outcome.server.finite()


def test_refusals() -> None:
    simulation = trained(FedAvg())
    with pytest.raises(BadInput, match=r"finetune_etf needs a model with the etf head"):
        run_stage(simulation.using(Loop()), FineTuneETF())
    with pytest.raises(BadInput, match=r"no client has one.*client_test=0\.3"):
        run_stage(trained(FedAvg(), client_test=None).using(Loop()), FineTune())
    with pytest.raises(BadInput, match="iterations"):
        FineTuneETF(iterations=-1)
    with pytest.raises(BadInput, match="epochs"):
        FineTuneETF(epochs=0)
