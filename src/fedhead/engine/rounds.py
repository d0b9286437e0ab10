"""The rounds: train, evaluation, hand out a snapshot; then the stages; then the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedhead.algorithm.base import Method, Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.tree import Tree, Weights
from fedhead.data.federation import Federation
from fedhead.engine import evaluation
from fedhead.engine.client_states import ClientStates
from fedhead.engine.metrics import Row, RunMetrics
from fedhead.engine.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.job import Executor
from fedhead.executors.loop import Loop
from fedhead.models.precision import set_precision
from fedhead.models.split_model import SplitModel


@dataclass(frozen=True)
class Snapshot:
    """Everything from which a run goes on after a round."""

    round: int
    server: Tree
    clients: dict[int, Tree]
    history: list[Row]


@dataclass
class StageResult:
    """What a stage made of a trained federation."""

    name: str
    server: Tree
    memory: ClientStates
    accuracy: float | None
    personal: float | None
    metrics: Row
    weights: Weights | None


@dataclass
class Result(RunMetrics):
    """A finished run: its history, its weights and what it can still be asked."""

    simulation: Simulation = field(repr=False)
    executor: str
    history: list[Row] = field(repr=False)
    outcomes: dict[str, StageResult] = field(repr=False, default_factory=dict)
    last_rounds: int = 1
    preparing: float = 0.0

    @property
    def server(self) -> Tree:
        """The server's final state."""
        return self.simulation.server

    @property
    def clients(self) -> dict[int, Tree]:
        """What each client that took part has kept."""
        return self.simulation.memory.states

    @property
    def weights(self) -> Weights | None:
        """The global model, where the method has one."""
        return self.simulation.method.global_model(self.server, self.simulation.task)

    @property
    def measured(self) -> dict[str, Row]:
        """The figures of each stage."""
        return {name: outcome.metrics for name, outcome in self.outcomes.items()}

    def calibrate(self, stage: Stage) -> StageResult:
        """Run a stage, such as `CCVR()`, on the trained federation; the run itself stays as it is."""
        return run_stage(self.simulation, stage, select.by_name(self.executor, self.simulation))


def run(
    federation: Federation,
    model: SplitModel | Sequence[SplitModel],
    method: Method,
    *,
    rounds: int,
    local: LocalTraining,
    participation: float = 1.0,
    stages: Sequence[Stage] = (),
    seed: int = 0,
    executor: str | Executor = "auto",
    device: str = "auto",
    precision: str = "fp32",
    evaluate_every: int = 1,
    last_rounds: int = 1,
    resume: Snapshot | None = None,
    on_round: Callable[[Snapshot], None] | None = None,
    on_start: Callable[[str], None] | None = None,
    assign: Sequence[int] | None = None,
) -> Result:
    """Train a federation and run the stages; `on_start` learns the executor, `on_round` gets a snapshot a round."""
    models = [model] if isinstance(model, SplitModel) else list(model)
    simulation = Simulation(
        federation,
        models,
        method,
        rounds=rounds,
        local=local,
        participation=participation,
        seed=seed,
        device=select.device(device),
        bf16=set_precision(precision),
        assign=assign,
    )
    stages = [stage.after(method) for stage in stages]  # refuses what does not go together before any compute
    for stage in stages:
        stage.check(models, federation)
    history: list[Row] = []
    begin = 0
    if resume is not None:
        simulation.server = resume.server.to(simulation.device)
        for k, state in resume.clients.items():
            simulation.memory[k] = state.to(simulation.device)
        history, begin = list(resume.history), resume.round
    worker = select.executor(executor, simulation)
    if on_start is not None:
        on_start(worker.name)
    for number in range(begin + 1, rounds + 1):
        row = _round(simulation, worker, number, evaluate_now=number % evaluate_every == 0 or number == rounds)
        history.append(row)
        if on_round is not None:
            on_round(Snapshot(number, simulation.server, simulation.memory.states, history))
    result = Result(simulation, worker.name, history, last_rounds=last_rounds)
    for stage in stages:
        result.outcomes[stage.name] = run_stage(simulation, stage, worker)
    result.preparing = worker.preparing
    return result


def _round(simulation: Simulation, worker: Executor, number: int, evaluate_now: bool) -> Row:
    begin, prepared = time.perf_counter(), worker.preparing
    traffic = simulation.round(number, worker)
    row: Row = {"round": number, "lr": simulation.lr(number), "bytes_up": traffic.up, "bytes_down": traffic.down}
    row["participants"] = traffic.participants
    if evaluate_now:
        row |= simulation.evaluate(simulation.method, simulation.server, simulation.memory, number, worker)
    row["seconds"] = time.perf_counter() - begin - (worker.preparing - prepared)  # compiling is no training
    return row


def run_stage(simulation: Simulation, stage: Stage, worker: Executor) -> StageResult:
    """One stage on top of a trained simulation, which stays as it is."""
    begin = time.perf_counter()
    stage = stage.after(simulation.method)
    stage.check([task.model for task in simulation.tasks], simulation.federation)
    memory, number = simulation.memory.copy(), simulation.task.rounds + 1
    server, metrics = simulation.server, Row(bytes_up=0, bytes_down=0)
    if (earlier := stage.earlier()) is not None:
        before = run_stage(simulation, earlier, worker)
        server, metrics = server.replace(model=server["model"].replace(before.weights)), before.metrics
    passing = not stage.phases(simulation.task)  # one pass over each client's data, which a CPU makes one by one
    carrier = worker if not passing else ForwardExecutor() if simulation.device.type == "cuda" else Loop()
    server, traffic = simulation.algorithm(stage, server, memory, simulation.holders, number, carrier)
    metrics = {"bytes_up": metrics["bytes_up"] + traffic.up, "bytes_down": metrics["bytes_down"] + traffic.down}
    metrics |= simulation.evaluate(stage, server, memory, number, worker)
    if simulation.federation.client_test is not None and (steps := stage.steps()):
        found = {name: simulation.personal(step, server, memory, number, worker) for name, step in steps.items()}
        metrics["steps"] = {name: evaluation.mean(each) for name, each in found.items()}
    metrics["seconds"] = time.perf_counter() - begin
    model = stage.global_model(server, simulation.task)
    return StageResult(stage.name, server, memory, metrics["accuracy"], metrics["personal"], metrics, model)
