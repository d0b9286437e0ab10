"""A simulated run: a federation on one machine, trained by the round loop from beginning to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Upload
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.engine.rounds import rounds as loop
from fedhead.engine.rounds.callbacks import Callback
from fedhead.engine.rounds.rounds import FinishedRun, Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.metrics.registry import NO_METRICS, Metric
from fedhead.models.precision import set_precision
from fedhead.models.split_model import SplitModel
from fedhead.samplers.base import Sampler

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


def simulate(
    federation: Federation,
    model: SplitModel | Sequence[SplitModel],
    method: Method,
    *,
    rounds: int,
    local: LocalTraining,
    participation: float = 1.0,
    stages: Sequence[Stage] = (),
    uploads: Sequence[Upload] = (),
    aggregator: Aggregator | None = None,
    outliers: OutlierPolicy | None = None,
    sampler: Sampler | None = None,
    stragglers: Stragglers | None = None,
    seed: int = 0,
    executor: str | Executor = "auto",
    device: str = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    evaluate_every: int = 1,
    last_rounds: int = 1,
    metrics: Mapping[str, Metric] = NO_METRICS,
    callbacks: Sequence[Callback] = (),
    resume: Snapshot | None = None,
    on_round: Callable[[Snapshot], Any] | None = None,
    on_start: Callable[[str], None] | None = None,
    assign: Sequence[int] | None = None,
    cache_features: str | None = None,
) -> FinishedRun:
    """Simulate a federation and run the round loop on it.

    Args:
        federation: The clients' data.
        model: One architecture, or several: client i has model i mod n, or the one that `assign` gives it.
        method: What is trained.
        rounds: How many rounds.
        local: How clients train.
        participation: The share of the clients that train in a round.
        stages: What follows the rounds.
        uploads: What a reply passes before it leaves a client.
        aggregator: What the server takes in place of the weighted mean.
        outliers: What the server does with replies that stand out from the others.
        sampler: Who takes part in a round; None: any client, with the same probability.
        stragglers: Who does not finish in time, and what the server does then.
        seed: Decides cohorts, batches and augmentation.
        executor: `loop`, `stack`, `lanes`, `auto` (the fastest of a short trial), or an executor.
        device: `cpu`, `cuda`, or `auto`.
        precision: `fp32`, `tf32` (on a GPU) or `bf16`.
        compile: When a stack is compiled on a GPU: `auto`, `wait` or `never`.
        evaluate_every: Evaluate after every so many rounds, and after the last `last_rounds`.
        last_rounds: Over how many of the last rounds the mean accuracy is taken.
        metrics: Further metrics of the global model, recorded wherever its accuracy is.
        callbacks: What may stop the run or keep a round's models.
        resume: Where to go on, from an earlier run's `on_round`.
        on_round: Called with a snapshot after each round; it may return `STOP`.
        on_start: Called with the executor's name before the first round.
        assign: The number of each client's architecture.
        cache_features: Where the features of a frozen extractor are kept, "memory" or a folder; None: they are not.

    Returns:
        The finished run.
    """
    where = select.device(device)
    simulation = Simulation(
        federation,
        [model] if isinstance(model, SplitModel) else list(model),
        method,
        executor=executor,
        compile=compile,
        rounds=rounds,
        local=local,
        participation=participation,
        uploads=uploads,
        aggregator=aggregator,
        outliers=outliers,
        sampler=sampler,
        stragglers=stragglers,
        seed=seed,
        device=where,
        bf16=set_precision(precision, where),
        assign=assign,
        cache_features=cache_features,
    )
    return loop.run(
        simulation,
        stages=stages,
        evaluate_every=evaluate_every,
        last_rounds=last_rounds,
        metrics=metrics,
        callbacks=callbacks,
        resume=resume,
        on_round=on_round,
        on_start=on_start,
    )
