"""Samplers in runs: on both executors, around a checkpoint, over Flower, from recipes and from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import make_simulation, run
from small import SIZES, federation, network
from tiers import quick

import fedhead as fh
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.recipes.recipe import load
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder

LOCAL = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05, momentum=0.9))
ROUNDS = 4


@dataclass(frozen=True)
class Largest(fh.Sampler):
    """The clients with most samples; nobody in some rounds."""

    idle: int = 0  # every so many rounds nobody takes part; 0: never

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        return [] if self.idle and round % self.idle == 0 else sorted(sizes, key=lambda k: -sizes[k])[:count]


SAMPLERS = [fh.UniformSampler(), fh.WeightedSampler(), fh.RoundRobinSampler(), Largest(idle=2)]


def made(sampler: fh.Sampler | None, method: fh.Method | None = None, **settings: Any) -> Simulation:
    usual = {"rounds": ROUNDS, "local": LOCAL, "participation": 0.4, "dtype": torch.float64, "sampler": sampler}
    return make_simulation(federation(), [network("batch")], method or fh.FedAvg(), **usual | settings)


def trained(sampler: fh.Sampler | None, executor: Executor, **settings: Any) -> Simulation:
    simulation = made(sampler, **settings).using(executor)
    for number in range(1, ROUNDS + 1):
        train_round(simulation, number)
    return simulation


def assert_same(one: fh.Tree, other: fh.Tree, tolerance: float = 1e-10) -> None:
    assert one.leaves().keys() == other.leaves().keys()
    for name, t in one.leaves().items():
        torch.testing.assert_close(t, other.leaves()[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("sampler", quick(SAMPLERS, fh.WeightedSampler(), Largest(idle=2)), ids=lambda one: one.name)
def test_loop_and_stack_give_the_same(sampler: fh.Sampler) -> None:
    loop, stack = trained(sampler, fh.Loop()), trained(sampler, fh.Stack())
    assert_same(loop.server, stack.server)
    assert loop.states.kept.keys() == stack.states.kept.keys()


def test_uniform_is_the_default() -> None:
    one, other = trained(None, fh.Loop()).server.leaves(), trained(fh.UniformSampler(), fh.Loop()).server.leaves()
    assert all(torch.equal(t, other[name]) for name, t in one.items())


@pytest.mark.parametrize("sampler", quick(SAMPLERS, fh.WeightedSampler(), Largest(idle=2)), ids=lambda one: one.name)
def test_a_resumed_run_selects_the_same_clients(sampler: fh.Sampler) -> None:
    seen: list[Snapshot] = []
    whole = run(made(sampler, fh.Scaffold()), on_round=seen.append)
    resumed = run(made(sampler, fh.Scaffold()), resume=seen[1])
    for name, t in whole.server.leaves().items():
        assert torch.equal(t, resumed.server.leaves()[name])
    assert [row["participants"] for row in whole.rows] == [row["participants"] for row in resumed.rows]


def test_replies_are_weighted_by_samples_over_probability() -> None:
    """With m = 2 of (9, 5, 14, 3): π = (18, 10, 28, 6)/31, all below 1, so that both replies count alike."""
    simulation = made(fh.WeightedSampler()).using(fh.Loop())
    cohort = simulation.draw_cohort(1, simulation.sizes(simulation.clients.holders))
    assert cohort.inclusion == pytest.approx({k: 2 * SIZES[k] / 31 for k in cohort.clients})
    received = simulation.exchange(simulation.context(1), cohort.clients)
    models = [received.replies[k].send["model"] for k in cohort.clients]
    train_round(simulation, 1)
    assert_same(simulation.server["model"], (models[0] + models[1]) / 2)


def test_a_round_without_clients_leaves_the_model_and_says_so() -> None:
    said: list[str] = []
    simulation = made(Largest(idle=2)).using(fh.Loop())
    simulation.log = said.append  # type: ignore[method-assign]  # in place of a warning
    train_round(simulation, 1)
    before = simulation.server.clone()
    row = train_round(simulation, 2, evaluated=True)
    assert all(torch.equal(t, before.leaves()[name]) for name, t in simulation.server.leaves().items())
    assert (row["participants"], row["bytes_up"], row["bytes_down"]) == (0, 0, 0)
    assert row["skipped"] == "no client takes part, the model stays as it is"
    assert row["accuracy"] is not None
    assert said == ["round 2: no client takes part, the model stays as it is"]


def test_an_executor_is_chosen_although_nobody_takes_part_in_the_first_round() -> None:
    assert run(made(Largest(idle=1), executor="auto", rounds=1)).executor in ("loop", "stack")


# -- recipes and Python -------------------------------------------------------------------------------
SMALL = ["rounds=3", "local_epochs=1", "model.hidden=[8]", "clients=5", "participation=0.4", "subset=200"]
CODE = '''
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Fixed(fh.Sampler):
    """The same clients in every round."""

    first: int = 0

    def select(self, round, count, sizes, seed):
        return sorted(sizes)[self.first : self.first + count]
'''


def test_a_recipe_names_a_sampler_of_a_file_and_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    recipe = load("digits", [*SMALL, "sampler=mine.py:Fixed(first=1)"])
    execute(recipe, tmp_path / "run", Compute(executor="loop"))
    rows = RunFolder.open(tmp_path / "run").metrics()
    assert [list(row["client_train_loss"]) for row in rows] == [["1", "2"]] * 3
    assert "sampler" in {entry["kind"] for entry in RunFolder.open(tmp_path / "run").environment()["components"]}
    (tmp_path / "mine.py").write_text(CODE.replace("sorted(sizes)", "list(sizes)"))
    with pytest.raises(BadInput, match=r"mine.py \(sampler mine.py:Fixed\) changed since"):
        execute(recipe.override(["rounds=4"]), tmp_path / "run", resume=True)


def test_a_sampler_in_python_is_recorded_in_the_folder(tmp_path: Path) -> None:
    fed = fh.Federation.load("digits", "dirichlet(1.0)", clients=5, subset=200)
    settings = {"rounds": 1, "participation": 0.4, "executor": "loop"}
    for sampler, text in (("weighted", "weighted"), (fh.RoundRobinSampler, "round_robin"), (Largest(2), None)):
        result = fh.run(fed, "mlp(hidden=[4])", sampler=sampler, out=tmp_path / str(text), **settings)  # type: ignore[arg-type]  # a few settings
        assert result.rows[0]["participants"] == 2
        found = RunFolder.open(tmp_path / str(text)).recipe.sampler
        assert found == (text or f"{Largest.__module__}:Largest(idle=2)")


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ("wieghted", "unknown sampler 'wieghted': did you mean 'weighted'"),
        (3, "sampler is int: give a name or a sampler, see `fedhead ls samplers`"),
        (fh.Sampler, r"has to define select\(self, round, count, sizes, seed\)"),
        ("weighted(2)", "1 values are too many"),
    ],
)
def test_what_is_no_sampler_is_refused(sampler: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        fh.run(federation(), network("group"), sampler=sampler, rounds=1)


@pytest.mark.parametrize(("participation", "warned"), [(1.0, True), (0.5, False)])
def test_a_sampler_warns_where_all_clients_take_part(
    participation: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fh.run(federation(), network(), rounds=1, sampler="weighted", participation=participation, executor="loop")
    assert ("sampler weighted has no effect: all clients are in every round" in caplog.text) == warned


def test_a_sampler_whose_first_cohort_happens_to_be_everybody_has_an_effect(caplog: pytest.LogCaptureFixture) -> None:
    def first_cohort(seed: int) -> int:
        settings: dict[str, Any] = {"rounds": 1, "sampler": "poisson", "participation": 0.6, "seed": seed}
        return int(fh.run(federation(), network(), executor="loop", **settings).history["participants"].iloc[0])

    clients = sum(len(indices) > 0 for indices in federation().indices)
    assert clients in map(first_cohort, range(12))
    assert "has no effect" not in caplog.text


class TuneAll(fh.FineTune):
    """Fine-tuning of the whole model for the run's local epochs."""

    name = "tune_all"

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.method.loss),)


@pytest.mark.parametrize(
    ("epochs", "stages", "warned"),
    [(1, [], False), (2, [], True), (2, [fh.FineTune()], True), (2, [TuneAll()], False)],
    ids=["default", "set", "finetune", "own-stage"],
)
def test_local_epochs_warn_where_each_phase_has_its_own(
    epochs: int, stages: list[fh.Stage], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("fedavg", "fedrep"):
        fh.run(federation(), network(), method, rounds=1, local_epochs=epochs, stages=stages, executor="loop")
    said = [line for line in caplog.messages if "local_epochs and local_steps have no effect" in line]
    assert [("fedrep" in line) for line in said] == [True] * warned


@pytest.mark.parametrize(("batch_size", "warned"), [(64, True), (2, False)])
def test_drop_last_warns_where_no_client_has_a_whole_batch(
    batch_size: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fh.run(federation(), network(), rounds=1, batch_size=batch_size, drop_last=True, executor="loop")
    assert ("drop_last has no effect: no client has 64 samples" in caplog.text) == warned
