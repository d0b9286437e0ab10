"""How an executor is chosen."""

from __future__ import annotations

import time

import pytest
import torch
from mixed import pair
from simulations import make_simulation
from small import federation, network

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.client_round import phase_runs
from fedhead.executors.client.job import Job
from fedhead.executors.compiling import choice as compile_choice
from fedhead.executors.loop import Loop
from fedhead.executors.stack.vectorize import VmapVectorizer
from fedhead.methods import METHODS


def simulation(rounds: int = 1, participation: float = 1.0) -> Simulation:
    local = LocalTraining(epochs=3, batch_size=4)
    return make_simulation(
        federation(), [network("group")], METHODS["fedavg"](), rounds=rounds, local=local, participation=participation
    )


def test_auto_times_the_executors_and_takes_one() -> None:
    assert select.executor("auto", simulation()).name in ("loop", "stack")


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({"loop": 2.0, "stack": 1.0}, "stack"),
        ({"loop": 1.0, "stack": 2.0}, "loop"),
        ({"loop": float("inf"), "stack": float("inf")}, "loop"),
    ],
)
def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], taken: str) -> None:
    monkeypatch.setattr(select, "seconds_per_client", lambda worker, jobs: seconds[worker.name])
    assert select.executor("auto", simulation()).name == taken


class OnGpu:
    """A federation of several architectures as it looks on a GPU."""

    def __init__(self, simulated: Simulation):
        self.device, self.task, self.jobs_of_round = torch.device("cuda"), simulated.task, simulated.jobs_of_round


@pytest.mark.parametrize(("most", "timed"), [(40, ["stack", "lanes"]), (0, ["lanes"])])
def test_many_convolutions_of_several_architectures_are_not_tried_as_a_stack(
    monkeypatch: pytest.MonkeyPatch, most: int, timed: list[str]
) -> None:
    """Its kernels would be compiled for each of them."""
    seen: list[str] = []
    monkeypatch.setattr(select, "seconds_per_client", lambda worker, jobs: seen.append(worker.name) or len(seen))
    monkeypatch.setattr(select, "MAX_CONVOLUTIONS", most)
    mixed = make_simulation(federation(), pair(), METHODS["fedclassavg"](), rounds=1, local=LocalTraining(batch_size=4))
    assert select.executor("auto", OnGpu(mixed), compile="never").name == timed[0]
    assert seen == timed


@pytest.mark.parametrize(
    ("compile", "pays", "compiled"),
    [("wait", True, True), ("wait", False, False), ("auto", True, False), ("never", True, False), (True, True, False)],
)
@pytest.mark.parametrize("name", ["lanes", "auto"])
def test_lanes_are_compiled_only_where_someone_waits_for_it(
    name: str, compile: str | bool, pays: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps take minutes, one architecture after another."""
    monkeypatch.setattr(select, "pays_to_compile", lambda simulation: pays)
    monkeypatch.setattr(select, "seconds_per_client", lambda worker, jobs: 1.0)
    monkeypatch.setattr(select, "MAX_CONVOLUTIONS", 0)
    mixed = make_simulation(federation(), pair(), METHODS["fedclassavg"](), rounds=1, local=LocalTraining(batch_size=4))
    choose = select.executor if name == "auto" else select.by_name
    assert choose(name, OnGpu(mixed), compile=compile)._compiled.wanted is compiled


def test_a_stack_that_is_timed_does_not_get_its_lanes_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bool] = {}

    def timed(worker: Executor, jobs: object) -> float:
        seen[worker.name] = worker.graphs.compile if worker.name == "stack" else worker._compiled.wanted
        return 1.0

    monkeypatch.setattr(select, "pays_to_compile", lambda simulation: True)
    monkeypatch.setattr(select, "seconds_per_client", timed)
    mixed = make_simulation(federation(), pair(), METHODS["fedclassavg"](), rounds=1, local=LocalTraining(batch_size=4))
    select.executor("auto", OnGpu(mixed), compile="auto")
    assert seen == {"stack": True, "lanes": False}


def test_equal_convolutions_are_counted_once() -> None:
    jobs = simulation().jobs_of_round(1)
    assert select.convolutions(jobs) == select.convolutions(jobs * 2) == 1


class Watched(Executor):
    """Notes what it is given to do, on a clock of its own that goes on by `takes` seconds a run, or fails."""

    def __init__(self, name: str, clock: list[float], takes: list[float], fails: bool = False):
        self.name, self.clock, self.takes, self.fails = name, clock, takes, fails
        self.jobs: list[Job] = []

    def train(self, job: Job) -> list[Reply]:
        self.jobs.append(job)
        self.clock[0] += self.takes[min(len(self.jobs), len(self.takes)) - 1]
        if self.fails:
            raise NotImplementedError("no rule for this layer")
        return [Reply(Tree(), Tree())] * len(job.clients)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("name", "clients"), [("loop", [3, 0]), ("stack", [3, 0, 1, 4])])
def test_a_few_steps_of_the_largest_clients_are_timed_a_client(
    clock: list[float], name: str, clients: list[int]
) -> None:
    made = simulation()
    jobs = made.jobs(made.experiment.method, made.server, made.states, made.cohort(1), 1)
    worker = Watched(name, clock, [9.0, 0.5, 0.4, 7.0])  # the first run only warms up, and 0.9 seconds are enough
    assert select.seconds_per_client(worker, jobs) == pytest.approx(0.4 / len(clients))
    assert len(worker.jobs) == 3
    assert worker.jobs[0].clients == clients
    assert [len(s) for s in worker.jobs[0].schedules[0]] == [3]


def test_short_timings_are_repeated(clock: list[float]) -> None:
    made = simulation()
    worker = Watched("stack", clock, [0.01])
    select.seconds_per_client(worker, made.jobs(made.experiment.method, made.server, made.states, made.cohort(1), 1))
    assert len(worker.jobs) >= select.TIMED_FOR / 0.01


def test_an_executor_that_can_not_take_the_model_is_out_and_a_loop_that_can_not_fails(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    made = simulation()
    jobs = made.jobs(made.experiment.method, made.server, made.states, made.cohort(1), 1)
    assert select.seconds_per_client(Watched("stack", clock, [1.0], fails=True), jobs) == float("inf")
    assert "the stack executor can't take this model" in caplog.text
    with pytest.raises(NotImplementedError, match="no rule"):
        select.seconds_per_client(Watched("loop", clock, [1.0], fails=True), jobs)


def test_one_client_needs_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "seconds_per_client", lambda worker, jobs: float(worker.name == "loop"))
    assert isinstance(select.executor("auto", simulation(participation=0.1)), Loop)


def test_an_executor_that_is_given_is_taken() -> None:
    given = Loop()
    assert select.executor(given, simulation()) is given


def test_the_steps_of_a_run_are_those_of_the_clients_that_take_part() -> None:
    assert select.client_steps(simulation(rounds=2, participation=0.5)) == 30


def test_only_long_runs_are_compiled() -> None:
    # 9, 5, 0, 14 and 3 samples are 3 + 2 + 0 + 4 + 1 batches of 4, three epochs of them a round
    assert select.client_steps(simulation(rounds=2)) == 60
    assert not select.pays_to_compile(simulation())
    assert select.pays_to_compile(simulation(rounds=10_000))
    assert not select.pays_to_compile(simulation(rounds=5_000))


def test_few_steps_of_a_large_model_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation()  # 30 steps of 4 samples
    flops = compile_choice.forward_flops(made.jobs_of_round(1)[0].program)
    assert flops > 0
    monkeypatch.setattr(compile_choice, "FROM_FLOPS", 30 * 4 * flops)
    assert select.pays_to_compile(made)
    monkeypatch.setattr(compile_choice, "FROM_FLOPS", 30 * 4 * flops + 1)
    assert not select.pays_to_compile(made)


def test_a_model_that_can_not_be_stacked_is_found_out_with_one_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = simulation().jobs_of_round(1)[0]
    assert select.can_stack(job)

    def fail(*args: object) -> None:
        raise RuntimeError("vmap: no batching rule")

    monkeypatch.setattr(select, "local_round", fail)
    assert not select.can_stack(job)
    assert "can't take this model (RuntimeError: vmap: no batching rule" in caplog.text


@pytest.mark.parametrize(("name", "words"), [("stak", "did you mean 'stack'"), ("lanes", "need a GPU")])
def test_what_cannot_be_had_is_refused(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        select.executor(name, simulation())


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select.device("auto").type == select.device("cpu").type == "cpu"
    with pytest.raises(BadInput, match="no GPU is visible"):
        select.device("cuda")
    with pytest.raises(BadInput, match="did you mean 'cuda'"):
        select.device("cuda0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert select.device("auto").type == select.device("cuda").type == "cuda"


def test_only_phases_that_train_the_same_parameters_share_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("group", METHODS["fedetf"].head)
    made = make_simulation(federation(), [model], fh.FedETF(), rounds=2, local=LocalTraining(epochs=1, batch_size=4))
    stage = fh.FineTuneETF(iterations=5).on_method(made.experiment.method)
    (job,) = made.jobs(stage, made.server, made.states, made.clients.holders, 2)
    job = job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.schedules[k][0])))
    run = next(phase_runs(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer()))
    once = sum(len(mine[0]) for mine in job.schedules)  # the extractor's phase, the first of eleven
    for steps, pays in ((once, True), (once + 1, False)):
        monkeypatch.setattr(compile_choice, "FROM_STEPS", steps)
        assert compile_choice.pays_for(run) is pays


def test_a_stage_is_compiled_only_if_it_takes_long_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation()
    stage = fh.FineTune()
    (job,) = made.jobs(stage, made.server, made.states, made.clients.holders, 2)
    order = sorted(range(len(job.clients)), key=lambda k: -len(job.schedules[k][0]))
    job = job.take(order)
    run = next(phase_runs(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer()))
    steps = len(stage.phases(made.task)) * sum(len(mine[0]) for mine in job.schedules)
    monkeypatch.setattr(compile_choice, "FROM_STEPS", steps)
    assert compile_choice.pays_for(run)
    monkeypatch.setattr(compile_choice, "FROM_STEPS", steps + 1)
    assert not compile_choice.pays_for(run)

    (job,) = made.jobs_of_round(1)
    job = job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.schedules[k][0])))
    trained = next(phase_runs(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer()))
    assert compile_choice.pays_for(trained)  # its step serves all rounds


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "gpu", "cuda:-1", "CUDA"])
def test_names_of_no_device(name: str) -> None:
    with pytest.raises(BadInput, match="unknown device"):
        select.device(name)


def test_the_number_of_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert select.device("cuda:1") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]  # streams and graphs belong to the current GPU
    with pytest.raises(BadInput, match="cuda:2: torch sees 2 GPU"):
        select.device("cuda:2")
