"""`fedhead.run`: train a federated classifier from Python."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from os import PathLike
from typing import Any

import torch
from torch import nn

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.upload import Upload
from fedhead.api.load import load
from fedhead.api.result import Result
from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import known_arguments
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from fedhead.data.federation.federation import Federation
from fedhead.engine.clients.features import MEMORY
from fedhead.engine.experiment.callbacks import Callback
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import InputSpec
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.engine.rounds import rounds as rounds_loop
from fedhead.engine.rounds.observer import RoundFunction, Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.select import EXECUTORS
from fedhead.loggers.base import Logger
from fedhead.metrics.registry import MetricFunction
from fedhead.models.build_many import build_many
from fedhead.models.check import require_runnable
from fedhead.models.registry import Architecture, ModelLike
from fedhead.models.split_model import SplitModel
from fedhead.models.split_model import freeze as freeze_parameters
from fedhead.privacy.base import Protection
from fedhead.recipes import initial_weights
from fedhead.recipes.component_kinds import COMPONENT_KINDS, LOGGER_KIND
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import KEYS, Recipe
from fedhead.recipes.recipe_data import with_validation
from fedhead.runs.progress import Progress
from fedhead.runs.python_components import described
from fedhead.runs.read_runs import MODULE_WEIGHTS
from fedhead.runs.run import run_in_folder, threads_for
from fedhead.runs.run_loggers import RunLoggers
from fedhead.runs.run_writer import RunWriter
from fedhead.samplers.base import Sampler

_COMPONENTS = {"metrics", *(kind.key for kind in COMPONENT_KINDS)}
_NUMBERS = {*KEYS} - _COMPONENTS - {"model", "weights", "loggers", "optimizer", "cache_features"}


@known_arguments
def run(
    federation: Federation,
    model: SplitModel | ModelLike | Sequence[SplitModel | ModelLike],
    method: Method | type[Method] | str = "fedavg",
    *,
    rounds: int = 10,
    local_epochs: int | Sequence[int] | str = 1,
    local_steps: int | Sequence[int] | str | None = None,
    batch_size: int = 64,
    lr: float = 0.01,
    optimizer: str | Optimizer = "sgd",
    momentum: float = 0.0,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    lr_schedule: str | None = None,
    warmup_rounds: int | None = None,
    clip_norm: float | None = None,
    label_smoothing: float | None = None,
    class_weights: str | Sequence[float] | None = None,
    drop_last: bool = False,
    persistent_optimizer: bool = False,
    weights: initial_weights.Source | None = None,
    freeze: Sequence[str] = (),
    cache_features: bool | str | PathLike[str] = False,
    assign: Sequence[int] | None = None,
    stages: Sequence[Stage | type[Stage] | str] = (),
    participation: float = 1.0,
    sampler: Sampler | type[Sampler] | str | None = None,
    stragglers: Stragglers | str | None = None,
    uploads: Sequence[Upload | type[Upload] | str] = (),
    privacy: Sequence[Protection | type[Protection] | str] = (),
    aggregator: Aggregator | type[Aggregator] | str | None = None,
    outliers: OutlierPolicy | str | None = None,
    seed: int = 0,
    metrics: Sequence[str | MetricFunction] = (),
    validation: float | None = None,
    callbacks: Sequence[Callback | type[Callback] | str] = (),
    evaluate_every: int = 1,
    last_rounds: int = 1,
    executor: str | Executor | type[Executor] = "auto",
    device: str = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    out: str | PathLike[str] | None = None,
    resume: Snapshot | bool | None = None,
    progress: bool = False,
    loggers: Sequence[Logger | type[Logger] | str] = (),
    on_round: Callable[[Snapshot], Any] | None = None,
) -> Result:
    """Train a federated classifier.

    The first five arguments matter in every run; the others are listed in groups after them. Components are named as in
    recipes (a built-in name, package.module:Name or file.py:Name), or given themselves.

    Args:
        federation: Data of the clients.
        model: `SplitModel` (see `fedhead.split`), name of an architecture as in `mlp(hidden=[32])`, function
            (input_shape) that builds a model, or list of n of these for heterogeneous clients: client i has model
            i mod n, or the one given by `assign`.
        method: Method, or its name or class with default parameters.
        rounds: Number of rounds; 0 with stages that need no training, such as `ridge` on pretrained weights.
        local_epochs: Epochs of local training per round: a number, a list with one per client, or `"uniform(1, 5)"`,
            drawn for each client once (with `per=round`: in every round).

    Args: Local training
        local_steps: Steps of local training per round instead of epochs, in the same forms.
        batch_size: Samples per local step.
        lr: Learning rate of local training.
        optimizer: `"sgd"`, `"adam"`, `"adamw"`, or an optimizer such as `fedhead.SGD(0.1)`, which overrides `lr`,
            `momentum`, `nesterov`, `betas` and `weight_decay`.
        momentum: Momentum of SGD; for Adam set `betas`.
        nesterov: Whether SGD uses Nesterov momentum.
        betas: Decay rates of Adam's averages.
        weight_decay: Weight of the L2 penalty.
        lr_decay: Factor of the learning rate per round.
        lr_schedule: Schedule of the learning rate over rounds: `"cosine"` (or `"cosine(0.01)"`, which ends at a
            hundredth), `"step(30, 0.1)"`.
        warmup_rounds: Rounds of linear warm-up to `lr`, before the schedule starts.
        clip_norm: Maximum gradient norm of a local step, as in `torch.nn.utils.clip_grad_norm_`.
        label_smoothing: Share of each target that is spread over all classes, as in
            `torch.nn.functional.cross_entropy`.
        class_weights: Weight of each class in the loss: numbers, `"balanced"` (from the class counts of all clients
            together), or `"balanced_per_client"` (from each client's own).
        drop_last: Drop the last, partial batch of an epoch.
        persistent_optimizer: Keep each client's optimizer state between rounds.

    Args: Models and stages
        weights: Initial weights: a state dict, a .safetensors or PyTorch file, or a run folder, with the names of your
            module or of the model's parts.
        freeze: Frozen parts (`"extractor"`), submodules, or patterns of parameter names.
        cache_features: With a frozen extractor and no augmentation: compute the features of all samples once and cache
            them in memory (True) or in a folder, which later runs reuse.
        assign: Index of each client's model in the list `model`.
        stages: Stages after the rounds, in order, or their names or classes.

    Args: Clients and server
        participation: Share of the clients that train in a round.
        sampler: Sampler of the cohort: `"uniform"` (default), `"weighted"` by samples, `"round_robin"`, or a sampler.
        stragglers: Simulation of late clients: `"drop(0.2)"` drops each with probability 0.2, `"partial(0.2)"` cuts its
            steps.
        uploads: Transforms of each reply before it is sent, in order: uploads, their classes, or texts such as
            `clip(1.0)`.
        privacy: Differential privacy of what clients send, such as `dp(epsilon=1)` for the statistics of stages.
        aggregator: Aggregator that replaces the weighted mean, such as `krum(2)`, its class, or a text.
        outliers: Policy for replies that differ from the others of their round, such as `drop(norm=5)`.

    Args: Evaluation
        seed: Seed of batches, cohorts and the initial weights of models that fedhead builds, by name or by a function.
            A module starts from the weights that it has.
        metrics: Metrics of the global model in every evaluated round, in addition to the accuracy: names or functions.
        validation: Share of each client's training samples held out for the metrics of callbacks.
        callbacks: Callbacks that may stop the run or keep the models of a round, such as
            `fedhead.EarlyStopping(patience=5)` and `fedhead.BestModel()`, their classes, or texts.
        evaluate_every: Rounds between evaluations; the last `last_rounds` are always evaluated.
        last_rounds: Number of last rounds in `Result.accuracy_mean`.

    Args: Compute
        executor: Executor: `"auto"` (the fastest in a short trial), a name from `fedhead ls executors`, an executor or
            its class.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        precision: `"fp32"`, `"tf32"` or `"bf16"`.
        compile: Compilation of the stack's steps on a GPU, for long runs: `"auto"` compiles in parallel with training,
            `"wait"` compiles first, so that repeated runs are bit-identical, `"never"` does not compile.

    Args: Run folder and progress
        out: Run folder, from which the run can be resumed, reported and loaded (`fedhead.load`). Objects that a recipe
            can't store (data, modules, classes of a notebook, functions) are recorded by name and digest, and have to
            be passed again to resume.
        resume: With `out`, True: resume an interrupted run, or extend a finished one to more `rounds` or `stages`.
            Without `out`: a snapshot from an earlier run's `on_round`.
        progress: Show a progress bar, also in notebooks.
        loggers: Loggers of the records, such as `"csv"` or `fedhead.TensorBoard("logs")`, their classes, or texts.
        on_round: Called with a snapshot after each round; returns `fedhead.STOP` to end the run.

    Returns:
        The finished run.

    Raises:
        BadInput: An argument is invalid, or arguments are incompatible; raised before training.
        Diverged: Numbers became non-finite.
    """
    arguments = dict(locals())  # named like recipe keys
    _check_arguments(federation, model, metrics, out, resume)
    numbers = Recipe(  # checks the ranges
        dataset=federation.title,
        partition=federation.partition,
        clients=len(federation),
        objective=None if federation.objective == "multiclass" else federation.objective,  # type: ignore[arg-type]
        **{key: value for key, value in arguments.items() if key in _NUMBERS},
        optimizer=optimizer if isinstance(optimizer, str) else "sgd",  # type: ignore[arg-type]  # checked there
        cache_features=MEMORY if cache_features is True else os.fspath(cache_features) if cache_features else None,
    )
    federation = with_validation(federation, numbers)
    given = {key: arguments[key] for key in _COMPONENTS}
    given["optimizer"] = None if isinstance(optimizer, str) else _check_optimizer(optimizer, numbers)

    def make_models(head: str | None) -> Sequence[SplitModel]:
        models = _models(federation, model, head, numbers.seed, assign)
        if weights is not None or freeze:
            models = copy.deepcopy(models)
        if weights is not None:
            initial_weights.start_from(models, weights)
        if freeze:
            freeze_parameters(models, numbers.freeze)
        return models

    inputs = InputSpec.of(federation)
    experiment = build_experiment(numbers, inputs, given=given, make_models=make_models, assign=assign)
    texts = [item if isinstance(item, str) else None for item in _given(model)]
    recipe, objects = described(experiment, numbers, federation, texts)
    if weights is not None:
        objects["weights"] = f"digest {initial_weights.digest(weights)}"
    elif any(isinstance(item, nn.Module) for item in _given(model)):
        objects["weights"] = MODULE_WEIGHTS
    chosen_executor = executor if isinstance(executor, str | Executor) else EXECUTORS.resolve(executor)()
    compute = Compute(None, device, chosen_executor, precision, compile=compile)
    made_loggers = LOGGER_KIND.build(loggers)
    threads = torch.get_num_threads()
    with Progress(quiet=not progress) as bar:
        observers = [bar.observer(recipe.method, rounds)]
        if on_round is not None:
            observers.append(RoundFunction(on_round))
        try:
            if out is None:
                # The number of threads affects rounding: use the same as for a run with a folder.
                torch.set_num_threads(threads_for(experiment.models))
                earlier = resume if isinstance(resume, Snapshot) else None
                with closing(RunLoggers(recipe, None, made_loggers)) as logs:
                    simulation = Simulation(experiment, federation, compute)
                    finished = rounds_loop.run(simulation, [*observers[:1], logs, *observers[1:]], earlier)
                    return Result.of(finished, recipe, objects)
            run = RunWriter(
                recipe, os.fspath(out), resume=bool(resume), compute=compute, objects=objects, loggers=made_loggers
            )
            if run.result is None:
                finished = run_in_folder(run, experiment, federation, compute, observers)
                return Result.of(finished, run.recipe, objects, run.out)
        finally:
            torch.set_num_threads(threads)
    return load(
        out,
        federation=federation,
        model=experiment.models,
        method=experiment.method,
        stages=experiment.stages,
        uploads=experiment.uploads,
        optimizer=experiment.local.optimizer,
        device=device,
    )


def _check_arguments(federation: Any, model: Any, metrics: Any, out: Any, resume: Any) -> None:
    """Check the types of arguments, and that there is a run to resume."""
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise BadInput(f"federation is {kind}: make one first, fedhead.Federation.from_arrays(x, y)")
    if not isinstance(model, str | Sequence) and not callable(model):
        raise BadInput(f"model is {type(model).__name__}: give a name, fedhead.split(model, classifier='…'), or a list")
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        raise BadInput(f"metrics is {metrics!r}: give a list, such as ['f1']")
    if not isinstance(resume, Snapshot | bool | None):
        raise BadInput(
            f"resume is {type(resume).__name__}: with out, give True; without, the snapshot that an earlier run's "
            "on_round was given"
        )
    if out is not None and isinstance(resume, Snapshot):
        raise BadInput("resume: a run folder has its own checkpoint; give resume=True, or leave out= out")
    if out is None and resume is True:
        raise BadInput("resume=True needs out=: give the run's folder, out='runs/…'")


def _check_optimizer(given: Any, numbers: Recipe) -> Optimizer:
    """Check that an argument is an optimizer, and that no other argument would be ignored."""
    if not isinstance(given, SGD | Adam):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        names = ", ".join(repr(name) for name in OPTIMIZERS)
        objects = "fedhead.SGD(…), fedhead.Adam(…), fedhead.AdamW(…)"
        raise BadInput(f"optimizer is {kind}: give a name, {names}, or {objects}")
    plain = Recipe()
    for name in ("lr", "momentum", "nesterov", "betas", "weight_decay"):
        if getattr(numbers, name) != getattr(plain, name):
            raise BadInput(f"{name}: {getattr(numbers, name)} would have no effect, the optimizer {given} has its own")
    return given


def _models(
    federation: Federation,
    model: SplitModel | ModelLike | Sequence[SplitModel | ModelLike],
    head: str | None,
    seed: int,
    assign: Sequence[int] | None,
) -> list[SplitModel]:
    given = _given(model)
    if not given:
        raise BadInput("model is an empty list: give at least one")
    specs = [(item, _head_beside(item, head)) for item in given if not isinstance(item, nn.Module)]
    built = iter(build_many(specs, federation.input_shape, federation.outputs, seed) if specs else [])
    models, tokens = [], federation.largest_token
    for number, item in enumerate(given):
        if not isinstance(item, nn.Module):
            models.append(next(built))
            if tokens is not None:  # the build checks shapes, not token ids
                name = item if isinstance(item, str) else getattr(item, "name", getattr(item, "__name__", number))
                require_runnable(models[-1], federation.input_shape, federation.outputs, f"model {name}", tokens)
            continue
        users = [number] if assign is None else [k for k, index in enumerate(assign) if index == number]
        which = "the model" if len(given) == 1 else f"client {users[0]}: its model" if users else f"model {number}"
        if not isinstance(item, SplitModel):
            raise BadInput(f"{which} is {type(item).__name__}: wrap it first, fedhead.split(model, classifier='…')")
        require_runnable(item, federation.input_shape, federation.outputs, name=which, largest_token=tokens)
        models.append(item)
    return models


def _given(model: Any) -> list[Any]:
    return [model] if isinstance(model, str | Architecture | nn.Module) or callable(model) else list(model)


def _head_beside(model: Any, head: str | None) -> dict[str, str]:
    """Return the method's head as a keyword argument; empty if a model such as `resnet20(head=…)` sets its own."""
    has_head = isinstance(model, str) and "head" in read_call(model, "model").named
    return {} if head is None or has_head else {"head": head}
