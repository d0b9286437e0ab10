"""Forward passes of many clients at once say what each client's model says alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from mixed import pair
from simulations import make_simulation
from simulations import simulate as run
from small import CLASSES, federation, network
from torch import Tensor, nn

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching
from fedhead.core.training.batch import Output
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Weights
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.rounds.rounds import run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import forward
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack import map_clients
from fedhead.executors.stack.map_clients import MemoryBudget
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.metrics.predictions import summarize
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split
from fedhead.stages import STAGES
from fedhead.stages.ccvr import CCVR
from fedhead.stages.finetune import FineTune, FineTuneETF

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
LOCAL_TESTS = (7, 0, 3, 4, 1)  # samples a client; client 1 has none, client 2 has no training samples


def simulate(name: str, models: list[SplitModel], rounds: int = 1) -> Simulation:
    """A trained federation whose clients have test sets of different sizes."""
    fed = federation()
    ends = np.cumsum(LOCAL_TESTS)
    local = [np.arange(end - n, end) for n, end in zip(LOCAL_TESTS, ends, strict=True)]
    fed = dataclasses.replace(fed, client_test=local)
    made = make_simulation(
        fed, models, METHODS[name](), rounds=rounds, local=LOCAL, participation=0.6, dtype=torch.float64
    )
    for number in range(1, rounds + 1):
        train_round(made.using(Loop()), number)
    return made


def work(simulation: Simulation) -> list[tuple[Job, list[Indices]]]:
    """The clients that have something to be tested on, a job an architecture, and their rows."""
    local = simulation.clients.federation.client_test
    assert local is not None
    clients = [k for k in simulation.clients.holders if len(local[k])]
    downlink = make_downlink(simulation.experiment.method, simulation.server, clients, simulation.clients.task_of)
    jobs = simulation.clients.work(simulation.experiment.method, downlink, simulation.states, 2, trains=False)
    return [(job, [local[k] for k in job.clients]) for job in jobs]


def plain(job: Job, place: int, simulation: Simulation, rows: Indices) -> Tensor:
    """The scores of one client's own model, without any of the machinery."""
    assert simulation.test is not None
    algorithm, client = job.program.algorithm, job.program.client(job.inputs(place))
    with torch.no_grad():
        return algorithm.predict(
            algorithm.personal_model(client), simulation.test.view(torch.from_numpy(rows), None), client
        )


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_methods_personal_models_stacked(name: str, norm: str) -> None:
    simulation = simulate(name, [network(norm, METHODS[name].head)])
    assert simulation.test is not None
    ((job, rows),) = work(simulation)
    for budget in (MemoryBudget(), MemoryBudget(samples=3), MemoryBudget(clients=2), None):
        found = forward.personal_scores(job, simulation.test, rows, budget)
        summary = forward.personal_scores(job, simulation.test, rows, budget, summarize)
        assert budget is None or not budget.one_by_one
        for place, (mine, short) in enumerate(zip(found, summary, strict=True)):
            expected = plain(job, place, simulation, rows[place])
            torch.testing.assert_close(mine, expected, atol=1e-10, rtol=1e-10)
            y = simulation.test.y[torch.from_numpy(rows[place])]
            assert torch.equal(short[:, 0].long(), expected.argmax(1))
            losses = torch.nn.functional.cross_entropy(expected, y, reduction="none")
            torch.testing.assert_close(short[:, 1], losses.double(), atol=1e-10, rtol=1e-10)


def accuracies(simulation: Simulation, executor: Executor) -> list[float | None]:
    found = simulation.using(executor).evaluate(simulation.context(1))
    assert found is not None
    return found.accuracy


def test_accuracies_are_those_of_one_client_after_another_and_none_without_samples() -> None:
    for name in ("fedavg", "ditto", "fedproto"):
        simulation = simulate(name, [network("batch")])
        found, apart = (accuracies(simulation, executor) for executor in (Stack(), Loop()))
        assert found == apart
        assert [value is None for value in found] == [False, True, True, False, False]


@pytest.mark.parametrize("name", ["fedclassavg", "fedproto", "ktpfl", "local"])
def test_architectures_are_stacked_each_on_its_own(name: str) -> None:
    simulation = simulate(name, pair())
    assert simulation.test is not None
    jobs = work(simulation)
    assert [job.clients for job, _ in jobs] == [[0, 4], [3]]
    for job, rows in jobs:
        for mine, expected in zip(
            forward.personal_scores(job, simulation.test, rows, MemoryBudget()),
            (plain(job, place, simulation, own) for place, own in enumerate(rows)),
            strict=True,
        ):
            torch.testing.assert_close(mine, expected, atol=1e-10, rtol=1e-10)


def test_stages_are_tested_with_what_they_made_of_each_client() -> None:
    simulation = simulate("fedetf", [network("batch", "etf")])
    for stage in (FineTune(), FineTuneETF(iterations=1)):
        stacked, apart = (run_stage(simulation.using(worker), stage).metrics for worker in (Stack(), Loop()))
        assert stacked["clients"] == apart["clients"]
        assert stacked.get("steps") == apart.get("steps")


# -- what does not go well ----------------------------------------------------------------------------
class TwoLayers(nn.Module):
    """A perceptron, whose `forward` subclasses write."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 8))
        self.fc = nn.Linear(8, CLASSES)


class Stubborn(TwoLayers):
    """A model that looks at its numbers, which no stack can let it do."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return self.fc(z if float(z.detach().sum()) > 0 else z.clone())  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_stacked_is_tested_client_by_client_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulation = simulate("ditto", [split(Stubborn(), classifier="fc")])
    assert accuracies(simulation, Stack()) == accuracies(simulation, Loop())
    [said] = caplog.messages
    assert said.startswith("testing the clients: this model can't be stacked, continuing client by client (")
    assert "\n" not in said
    assert simulation.clients.budgets[0].one_by_one  # and is not tried again


class Full:
    """Stands for a device that holds only so many clients."""

    def __init__(self, budget: int):
        self.budget = budget
        self.tried: list[int] = []

    def __call__(self, places: list[int]) -> list[int]:
        self.tried.append(len(places))
        if len(places) > self.budget:
            raise torch.OutOfMemoryError("full")
        return [10 * k for k in places]


def test_out_of_memory_halves_the_stacks_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    device, budget = Full(2), MemoryBudget()
    found = map_clients.map_in_stacks([3, 9, 5, 1, 7], device, lambda k: -1, budget, "testing")
    assert found == [0, 10, 20, 30, 40]
    assert device.tried == [5, 2, 2, 1]
    assert "testing: out of memory with 5 clients at once, continuing with 2" in caplog.text


def test_where_no_stack_fits_clients_go_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    found = map_clients.map_in_stacks([1, 1], Full(0), lambda k: -k, MemoryBudget(samples=128), "testing")
    assert found == [0, -1]
    assert "continuing client by client" in caplog.text


def hold_samples(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let memory run out where a model is applied to more samples at once, of all models of a stack."""
    plainly = Client.apply

    def apply(self: Client, w: Weights, x: Tensor, *args: Any, **named: Any) -> Output:
        held = x
        while torch._C._functorch.is_functorch_wrapped_tensor(held):
            held = torch._C._functorch.get_unwrapped(held)
        if held.numel() // x[0].numel() > most:
            raise torch.OutOfMemoryError("full")
        return plainly(self, w, x, *args, **named)

    monkeypatch.setattr(Client, "apply", apply)


@pytest.mark.parametrize("budget", [None, MemoryBudget(samples=256)], ids=["loop", "stack"])
def test_where_a_client_s_samples_do_not_fit_fewer_are_tested_at_once(
    budget: MemoryBudget | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = simulate("fedavg", [network("group")])
    assert simulation.test is not None
    ((job, rows),) = work(simulation)
    expected = forward.personal_scores(job, simulation.test, rows)
    hold_samples(monkeypatch, 3)
    found = forward.personal_scores(job, simulation.test, rows, budget)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)
    assert "testing the clients: out of memory with 7 samples at once, continuing with 3" in caplog.text
    assert "with 1 clients" not in caplog.text
    hold_samples(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        forward.personal_scores(job, simulation.test, rows, budget)


def test_where_a_client_s_samples_do_not_fit_its_statistics_take_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = simulate("fedavg", [network("group")])
    stage = CCVR().on_method(simulation.experiment.method)
    (job,) = simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 2)
    expected = Loop().train(job)
    hold_samples(monkeypatch, 2)
    for mine, theirs in zip(ForwardExecutor().train(job), expected, strict=True):
        for name, value in theirs.send["statistics"].items():
            torch.testing.assert_close(mine.send["statistics"][name], value, atol=1e-10, rtol=1e-10)


class Squeezed(TwoLayers):
    """A model that drops the rows of a single sample."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x).squeeze())
        return logits


def test_a_model_that_drops_the_rows_of_a_single_sample_is_told_so() -> None:
    simulation = simulate("fedavg", [split(Squeezed(), classifier="fc")])  # its last client has one test sample
    with pytest.raises(BadInput, match=r"fedavg: the scores of a test batch of 1 have the shape \[3\].*flatten\(1\)"):
        accuracies(simulation, Loop())


def test_bad_input_is_no_matter_of_stacks() -> None:
    def refuse(places: list[int]) -> list[int]:
        raise BadInput("no")

    with pytest.raises(BadInput, match="no"):
        map_clients.map_in_stacks([1, 1], refuse, lambda k: 0, MemoryBudget(), "testing")


@pytest.mark.parametrize("samples", [1, 2, 7, 100])
def test_every_row_is_seen_once_and_padding_stays_small(samples: int) -> None:
    lengths = [40, 39, 12, 12, 3, 1]
    seen = [0] * len(lengths)
    padding = 0
    for begin, end, width in map_clients._steps(lengths, samples):
        assert width * (end - begin) <= max(samples, width)
        for k, n in enumerate(lengths):
            there = max(0, min(end, n) - begin)
            seen[k] += there
            padding += (end - begin - there) if k < width else 0
    assert seen == lengths
    assert padding <= samples * len(lengths)


def test_clients_of_very_different_sizes_stand_in_different_stacks() -> None:
    stacks: list[list[int]] = []

    def note(places: list[int]) -> list[int]:
        stacks.append(places)
        return places

    map_clients.map_in_stacks([100, 3, 60, 49, 2], note, lambda k: 0, MemoryBudget(), "statistics", min_ratio=0.5)
    assert stacks == [[0, 2], [3], [1, 4]]


# -- statistics ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("covariance", ["full", "diagonal", "low-rank"])
@pytest.mark.parametrize("models", [lambda: [network("batch")], pair], ids=["one", "mixed"])
def test_statistics_in_stacks_are_those_of_one_client_after_another(
    covariance: str, models: Callable[[], list[SplitModel]]
) -> None:
    simulation = simulate("fedclassavg", models())
    stage = CCVR(covariance=covariance, rank=8).on_method(simulation.experiment.method)  # type: ignore[arg-type]  # a literal above
    jobs = simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 2)

    def whole(reply: Reply) -> Tensor:
        sent = reply.send["statistics"]
        return sent["factor"].mT @ sent["factor"] if covariance == "low-rank" else sent["outer"]

    for job in jobs:
        for stacked, alone in zip(ForwardExecutor(MemoryBudget(samples=12)).train(job), Loop().train(job), strict=True):
            for name in ("count", "sum"):
                torch.testing.assert_close(stacked.send["statistics"][name], alone.send["statistics"][name])
            torch.testing.assert_close(whole(stacked), whole(alone), atol=1e-10, rtol=1e-10)
            assert stacked.keep.keys() == alone.keep.keys()


def test_statistics_of_a_model_that_cannot_be_stacked(caplog: pytest.LogCaptureFixture) -> None:
    simulation = simulate("fedavg", [split(Stubborn(), classifier="fc")])
    stage = CCVR().on_method(simulation.experiment.method)
    (job,) = simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 2)
    for found, expected in zip(ForwardExecutor().train(job), Loop().train(job), strict=True):
        torch.testing.assert_close(found.send["statistics"]["outer"], expected.send["statistics"]["outer"])
    assert "stage ccvr: this model can't be stacked" in caplog.text


# -- whole runs ---------------------------------------------------------------------------------------
def test_a_stacked_run_reports_the_loops_figures() -> None:
    def figures(executor: str) -> list[object]:
        found = run(
            federation(),
            network("batch"),
            METHODS["ditto"](),
            rounds=2,
            local=LOCAL,
            stages=[STAGES["finetune"]()],
            executor=executor,
            device="cpu",
        )
        return [*(row["clients"] for row in found.rows), found.stages["finetune"].metrics["clients"]]

    assert figures("stack") == figures("loop")


def test_testing_draws_no_batches_but_knows_how_many_there_would_be() -> None:
    for drop_last in (False, True):
        for n in (0, 3, 4, 9):
            for epochs in (0, 1, 3):
                draw = batching.DrawArguments(n, 4, epochs, drop_last, 0)
                assert len(batching.empty_batches(draw)) == len(batching.draw_all([draw])[0])
    simulation = simulate("fedavg", [network("batch")])
    ((job, _),) = work(simulation)
    drawn = simulation.jobs(simulation.experiment.method, simulation.server, simulation.states, job.clients, 2)[0]
    assert torch.equal(job.stacked_inputs().steps, drawn.stacked_inputs().steps)


class OnGpu:
    """Attributes of a pool on a GPU that are read before it is tested."""

    device = torch.device("cuda")

    def __init__(self, sample_nbytes: int, count: int = 10_000):
        self.sample_nbytes, self.count = sample_nbytes, count

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("gib", "pool", "expected"),
    [
        (139, OnGpu(4 * 3 * 32 * 32), 139 * 2**20 // (4 * 3 * 32 * 32)),
        (139, OnGpu(4 * 8), 16384),
        (139, OnGpu(4 * 3 * 224 * 224), 1024),
        (8, OnGpu(4 * 3 * 32 * 32), 1024),
        (139, OnGpu(0, count=0), 1024),
    ],
    ids=["CIFAR", "a table", "large images", "a small GPU", "nothing"],
)
def test_a_gpu_tests_as_many_samples_at_once_as_take_little_of_its_memory(
    gib: int, pool: OnGpu, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert map_clients.samples_at_once(cast(Pool, pool)) == expected
    assert MemoryBudget.for_testing(cast(Pool, pool)).samples == max(4096, expected)


def test_a_cpu_tests_as_many_samples_at_once_as_fit_its_caches() -> None:
    pool = simulate("fedavg", [network("group")], rounds=0).clients.pool
    assert map_clients.samples_at_once(pool) == 1024
    assert MemoryBudget.for_testing(pool).samples == 256


def test_clients_are_stacked_by_a_stack_and_on_a_gpu_without_lanes() -> None:
    assert map_clients.use_stacks(torch.device("cpu"), Stack())
    assert not map_clients.use_stacks(torch.device("cpu"), Loop())
    assert map_clients.use_stacks(torch.device("cuda"), Loop())
    assert not map_clients.use_stacks(torch.device("cuda"), Lanes())
    assert MemoryBudget.on(torch.device("cuda")).samples > MemoryBudget.on(torch.device("cpu")).samples
