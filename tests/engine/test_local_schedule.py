"""Clients that do different amounts of local work, by their settings or since they are late."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from simulations import make_simulation, run
from small import SIZES, federation, network
from tiers import quick

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.core.training.per_client_counts import Uniform
from fedhead.engine.clients import local_schedule
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.stack.stack import by_steps
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder

LOCAL = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
EPOCHS = (1, 3, 1, 1, 5)  # the largest client does least, the smallest most
ROUNDS = 3
PLAIN = fh.LocalTraining(epochs=EPOCHS, batch_size=4, optimizer=fh.SGD(lr=0.05))
DROP, PARTIAL = fh.Stragglers("drop", 0.5, seed=2), fh.Stragglers("partial", 0.7)
WORK: dict[str, dict[str, Any]] = {
    "epochs": {"local": dataclasses.replace(LOCAL, epochs=EPOCHS)},
    "drawn": {"local": dataclasses.replace(LOCAL, epochs=Uniform(1, 4, "round"))},
    "steps": {"local": dataclasses.replace(LOCAL, steps=(5, 1, 1, 2, 4))},
    "drop": {"stragglers": DROP},
    "partial": {"stragglers": PARTIAL},
    "both": {"local": dataclasses.replace(LOCAL, epochs=EPOCHS), "stragglers": PARTIAL},
}


def made(method: fh.Method, norm: str = "group", **settings: Any) -> Simulation:
    usual = {"rounds": ROUNDS, "local": LOCAL, "dtype": torch.float64}
    return make_simulation(federation(), [network(norm, method.head)], method, **usual | settings)


def trained(method: fh.Method, executor: Executor, norm: str = "group", **settings: Any) -> Simulation:
    simulation = made(method, norm, **settings).using(executor)
    for number in range(1, ROUNDS + 1):
        train_round(simulation, number)
    return simulation


def left(simulation: Simulation) -> dict[str, torch.Tensor]:
    found = dict(simulation.server.leaves())
    return found | {f"{k}/{n}": t for k, state in simulation.states.kept.items() for n, t in state.leaves().items()}


def same(one: Simulation, other: Simulation, tolerance: float = 1e-10) -> None:
    a, b = left(one), left(other)
    assert a.keys() == b.keys()
    for name, t in a.items():
        torch.testing.assert_close(t, b[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


# -- executors and resumption -------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", quick(["fedavg", "scaffold"], "scaffold"))
def test_loop_and_stack_give_the_same(name: str, work: str) -> None:
    method = fh.METHODS[name]()
    same(trained(method, fh.Loop(), "batch", **WORK[work]), trained(method, fh.Stack(), "batch", **WORK[work]))


METHODS = [fh.FedRep(head_epochs=2), fh.KTpFL(), fh.Ditto()]


@pytest.mark.parametrize("method", quick(METHODS, fh.KTpFL()), ids=lambda method: method.name)
def test_clients_whose_phases_are_ordered_differently_are_stacked_apart(method: fh.Method) -> None:
    """FedRep's head and KT-pFL's distillation have their own epochs: who is first in one phase is last in another."""
    settings = {"local": dataclasses.replace(LOCAL, epochs=EPOCHS), "stragglers": PARTIAL}
    same(trained(method, fh.Loop(), **settings), trained(method, fh.Stack(), **settings))


def test_stacks_never_grow_and_usual_runs_have_one() -> None:
    for method, settings in ((fh.FedRep(head_epochs=2), WORK["both"]), (fh.KTpFL(), {}), (fh.FedAvg(), {})):
        (job,) = made(method, **settings).jobs_of_round(1)
        lists = by_steps(job)
        assert sorted(k for places in lists for k in places) == list(range(4))
        for places in lists:
            for phase in range(len(job.schedules[0])):
                steps = [len(job.schedules[k][phase]) for k in places]
                assert steps == sorted(steps, reverse=True)
        assert len(lists) == 1 or settings
    order = sorted(range(4), key=lambda k: -len(job.indices[k]))
    assert by_steps(job) == [order]


@pytest.mark.parametrize("work", quick(["drawn", "drop", "partial"], "partial"))
def test_a_resumed_run_ends_as_one_that_was_not_stopped(work: str) -> None:
    seen: list[Snapshot] = []
    whole = run(made(fh.Scaffold(), **WORK[work]), on_round=seen.append)
    resumed = run(made(fh.Scaffold(), **WORK[work]), resume=seen[0])
    for name, t in whole.server.leaves().items():
        assert torch.equal(t, resumed.server.leaves()[name])
    assert [row.get("absent") for row in whole.rows] == [row.get("absent") for row in resumed.rows]


# -- what each client does ----------------------------------------------------------------------------
def sent(simulation: Simulation, clients: list[int], round: int = 1) -> dict[int, fh.Tree]:
    found = simulation.exchange(simulation.context(round), clients)
    return {k: reply.send for k, reply in found.replies.items()}


def test_a_client_does_what_it_would_do_in_a_run_of_its_own_epochs() -> None:
    mixed = sent(made(fh.FedAvg(), local=PLAIN), [0, 1, 3, 4])
    for k, tree in mixed.items():
        alone = sent(made(fh.FedAvg(), local=dataclasses.replace(PLAIN, epochs=EPOCHS[k])), [k])[k]
        for name, t in alone.leaves().items():
            assert torch.equal(t, tree.leaves()[name])


def counts(simulation: Simulation, round: int = 1) -> dict[int, int]:
    (job,) = simulation.jobs(simulation.experiment.method, simulation.server, simulation.states, [0, 1, 3, 4], round)
    return {k: sum(map(len, mine)) for k, mine in zip(job.clients, job.schedules, strict=True)}


def test_steps_take_the_place_of_epochs() -> None:
    assert counts(made(fh.FedAvg(), **WORK["steps"])) == {0: 5, 1: 1, 3: 2, 4: 4}
    assert counts(made(fh.FedAvg(), local=PLAIN)) == {k: EPOCHS[k] * math.ceil(SIZES[k] / 4) for k in (0, 1, 3, 4)}


def test_scaffolds_control_variates_are_per_step_of_the_client() -> None:
    """c_i⁺ = c_i − c + (x − y_i)/(K_i η) with the client's own K_i (option II), from c = c_i = 0."""
    simulation = made(fh.Scaffold(), local=PLAIN).using(fh.Stack())
    x, replies = simulation.server["model"].params, sent(simulation, [0, 1, 3, 4])
    for k, steps in counts(simulation).items():
        expected = (x - replies[k]["model"].params) / (steps * 0.05)
        for name, t in expected.items():
            torch.testing.assert_close(replies[k]["control"][name], t, atol=1e-10, rtol=1e-10)


def test_fednova_divides_by_the_clients_own_steps() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        from fednova import FedNova
    finally:
        sys.path.pop(0)
    simulation = made(FedNova(), local=PLAIN, stragglers=PARTIAL).using(fh.Stack())
    steps = counts(simulation)
    assert steps != counts(made(FedNova(), local=PLAIN))
    x, replies = simulation.server["model"].params, sent(simulation, [0, 1, 3, 4])
    assert {k: float(tree["steps"]) for k, tree in replies.items()} == steps
    total = sum(SIZES)
    effective = sum(SIZES[k] / total * steps[k] for k in steps)
    parts = [(SIZES[k] / total / steps[k]) * (replies[k]["model"].params - x) for k in steps]
    train_round(simulation, 1)
    for name, t in (x + effective * sum(parts[1:], parts[0])).items():
        torch.testing.assert_close(simulation.server["model"][name], t, atol=1e-10, rtol=1e-10)


# -- stragglers ---------------------------------------------------------------------------------------
def test_late_clients_do_one_to_all_of_their_steps() -> None:
    simulation, whole = made(fh.FedAvg(), stragglers=fh.Stragglers("partial", 0.6)), counts(made(fh.FedAvg()))
    found = [counts(simulation, number) for number in range(1, 61)]
    assert all(1 <= one[k] <= whole[k] for one in found for k in one)
    assert {one[3] for one in found} == set(range(1, whole[3] + 1))
    fewer = sum(one[3] < whole[3] for one in found) / len(found)
    assert fewer == pytest.approx(0.6 * (1 - 1 / whole[3]), abs=0.2)  # 3 standard deviations


def test_dropped_clients_are_absent_and_the_others_are_averaged() -> None:
    simulation = made(fh.FedAvg(), stragglers=DROP).using(fh.Loop())
    late = [k for k in simulation.clients.holders if DROP.drops(k, 1, 0)]
    stay = [k for k in simulation.clients.holders if k not in late]
    assert late
    assert len(stay) > 1
    replies = sent(simulation, stay)
    row = train_round(simulation, 1)
    assert row["absent"] == {str(k): "it was late (a simulated straggler)" for k in late}
    assert row["participants"] == len(stay)
    assert set(simulation.states.kept) == set(stay)
    total = sum(SIZES[k] for k in stay)
    parts = [replies[k]["model"] * (SIZES[k] / total) for k in stay]
    for name, t in sum(parts[1:], parts[0]).items():
        torch.testing.assert_close(simulation.server["model"][name], t, atol=1e-12, rtol=1e-12)


def test_a_share_of_the_clients_is_late() -> None:
    late = [DROP.drops(k, number, 0) for k in range(50) for number in range(40)]
    assert sum(late) / len(late) == pytest.approx(0.5, abs=0.05)
    assert fh.Stragglers("drop", 1.0).drops(0, 1, 0)


def test_a_round_in_which_all_are_late_keeps_the_model_and_says_so() -> None:
    said: list[str] = []
    simulation = made(fh.FedAvgM(), stragglers=fh.Stragglers("drop", 1.0)).using(fh.Loop())
    simulation.log = said.append  # type: ignore[method-assign]  # in place of a warning
    before = simulation.server.clone().leaves()
    row = train_round(simulation, 1, evaluated=True)
    assert row["skipped"] == "no client takes part, the model stays as it is"
    assert list(row["absent"]) == ["0", "1", "3", "4"]
    assert all(torch.equal(t, before[name]) for name, t in simulation.server.leaves().items())
    assert row["accuracy"] is not None
    assert "train_loss" not in row
    assert said == ["round 1: no client takes part, the model stays as it is"]


def test_too_few_for_the_aggregator_keep_the_model() -> None:
    settings = {"aggregator": fh.TrimmedMean(), "stragglers": fh.Stragglers("drop", 0.6, seed=1)}
    rows = [train_round(made(fh.FedAvg(), **settings).using(fh.Loop()), number) for number in range(1, 9)]
    few = [row for row in rows if "skipped" in row]
    assert 0 < len(few) < len(rows)
    assert {row["skipped"] for row in few} >= {"only 2 clients are not late, the model stays as it is"}


def test_stages_are_with_all_clients() -> None:
    result = run(made(fh.FedAvg(), stragglers=DROP), stages=[fh.CCVR(samples=10, epochs=1)])
    assert result.stages["ccvr"].metrics["participants"] == 4
    assert "absent" not in result.stages["ccvr"].metrics


# -- recipes and Python -------------------------------------------------------------------------------
SMALL = ["rounds=3", "local_epochs=1", "model.hidden=[8]", "clients=3", "subset=120"]


def test_recipes_and_python_write_the_same_folder(tmp_path: Path) -> None:
    words = ["local_epochs=[1, 3, 2]", "stragglers=partial(0.5, seed=3)"]
    recipe = load("digits", [*SMALL, *words])
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    execute(recipe, tmp_path / "recipe", Compute(executor="loop"))
    fed = fh.Federation.load("digits", recipe.partition, clients=3, subset=120)
    settings = {name: getattr(recipe, name) for name in ("rounds", "lr", "momentum", "weight_decay", "batch_size")}
    late = fh.Stragglers("partial", 0.5, seed=3)
    out = tmp_path / "python"
    fh.run(fed, "mlp(hidden=[8])", local_epochs=[1, 3, 2], stragglers=late, out=out, executor="loop", **settings)
    one, other = (RunFolder.open(tmp_path / name) for name in ("recipe", "python"))
    assert [row["train_loss"] for row in one.metrics()] == [row["train_loss"] for row in other.metrics()]
    assert other.recipe.local_epochs == (1, 3, 2)
    assert other.recipe.stragglers == "partial(0.5, seed=3)"
    assert "optimizer" not in other.environment()["objects"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"local_epochs": [1, 2]}, "local_epochs lists 2 numbers for 5 clients"),
        ({"local_epochs": []}, "epochs: the list is empty"),
        ({"local_epochs": 2, "local_steps": 3}, "local_epochs: 2 would have no effect beside local_steps"),
        ({"local_steps": 0}, "local_steps: 0 is out of range"),
        ({"stragglers": "late(0.2)"}, "unknown policy of stragglers 'late'"),
        ({"stragglers": "drop"}, "share is missing"),
        ({"stragglers": "drop(0)"}, "share: 0 is out of range, it must be above 0"),
        ({"stragglers": 0.2}, "stragglers is float: give a text, such as"),
    ],
)
def test_what_can_not_be_done_is_refused_before_anything_is_computed(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says):
        fh.run(federation(), network("group"), rounds=1, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_what_batches_are_drawn_from_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    plainly = local_schedule.draw_arguments

    def counting(*args: Any) -> Any:
        found.append(args[3])
        return plainly(*args)

    simulation = made(fh.FedAvg())
    expected = [job.schedules for job in simulation.jobs_of_round(2)]
    monkeypatch.setattr(local_schedule, "draw_arguments", counting)
    simulation.clients.draw_ahead(simulation.clients.holders, 2)
    jobs = simulation.jobs_of_round(2)
    assert found == simulation.clients.holders
    for mine, own in zip(jobs[0].schedules, expected[0], strict=True):
        assert all((a.positions == b.positions).all() and a.key == b.key for a, b in zip(mine, own, strict=True))
    simulation.jobs_of_round(3)
    assert found == 2 * simulation.clients.holders


def test_a_method_that_changes_its_phases_draws_anew() -> None:
    class Changing(fh.Method):
        epochs: ClassVar[int] = 1

        def phases(self, task: fh.Task) -> tuple[fh.Phase, ...]:
            return (fh.Phase(self.loss, epochs=self.epochs),)

    simulation = made(Changing())
    simulation.clients.draw_ahead(simulation.clients.holders, 2)
    before = len(simulation.jobs_of_round(2)[0].schedules[0][0])
    Changing.epochs = 3
    assert len(simulation.jobs_of_round(2)[0].schedules[0][0]) == 3 * before
