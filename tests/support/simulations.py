"""Experiments and simulations of tests, from the few settings in which they differ from the defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun, Observer, RoundFunction, Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Transport
from fedhead.models.split_model import SplitModel

if TYPE_CHECKING:
    from fedhead.testing.inprocess import InProcessFederation

_SCHEDULE = {field.name for field in fields(Schedule)}
_COMPUTE = {field.name for field in fields(Compute)}


def make_experiment(models: SplitModel | Sequence[SplitModel], method: Method, **settings: Any) -> Experiment:
    """Return an experiment; the settings are fields of `Experiment` and `Schedule`."""
    schedule = Schedule(**{name: value for name, value in settings.items() if name in _SCHEDULE})
    parts = {name: value for name, value in settings.items() if name not in _SCHEDULE}
    listed = ("stages", "uploads", "callbacks", "assign")
    parts |= {name: tuple(parts[name]) for name in listed if parts.get(name) is not None}
    architectures = (models,) if isinstance(models, SplitModel) else tuple(models)
    return Experiment(method, architectures, schedule=schedule, **parts)


def make_simulation(
    federation: Federation,
    models: SplitModel | Sequence[SplitModel],
    method: Method,
    *,
    dtype: torch.dtype = torch.float32,
    kind: Callable[..., Simulation] = Simulation,
    bf16: bool = False,
    min_class_count: int = 1,
    **settings: Any,
) -> Simulation:
    """Return a simulation, by default a loop on the CPU; settings are those of `make_experiment` and `Compute`."""
    compute = {name: settings.pop(name) for name in _COMPUTE & settings.keys()}
    compute |= {"device": str(compute.get("device", "cpu")), "executor": compute.get("executor", "loop")}
    if bf16:
        compute["precision"] = "bf16"
    simulation = kind(make_experiment(models, method, **settings), federation, Compute(**compute), dtype=dtype)
    simulation.clients.leave_out_classes_below(min_class_count)
    return simulation


def simulate(
    federation: Federation,
    models: SplitModel | Sequence[SplitModel],
    method: Method,
    *,
    resume: Snapshot | None = None,
    on_round: Callable[[Snapshot], Any] | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> FinishedRun:
    """Make a simulation, and run it."""
    settings = {"device": "auto", "executor": "auto", **settings}
    watching = [*observers, *([] if on_round is None else [RoundFunction(on_round)])]
    return rounds.run(make_simulation(federation, models, method, **settings), watching, resume)


def run(
    transport: Transport,
    stages: Sequence[Stage] = (),
    *,
    resume: Snapshot | None = None,
    on_round: Callable[[Snapshot], Any] | None = None,
    **changes: Any,
) -> FinishedRun:
    """Run the round loop on a transport whose experiment is changed first."""
    clients = transport.clients
    numbers = {name: changes.pop(name) for name in _SCHEDULE & changes.keys()}
    schedule = replace(clients.experiment.schedule, **numbers)
    parts = {name: tuple(value) if name == "callbacks" else value for name, value in changes.items()}
    parts |= {"stages": tuple(stages)} if stages else {}
    clients.experiment = replace(clients.experiment, schedule=schedule, **parts)
    return rounds.run(transport, [] if on_round is None else [RoundFunction(on_round)], resume)


class RowFunction(Observer):
    """A function that is called with the record of each round."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self._function = function

    def round(self, row: dict[str, Any], snapshot: Snapshot) -> None:
        self._function(row)


def make_world(
    federation: Federation,
    models: dict[str, SplitModel],
    method: Method,
    settings: dict[str, Any],
    folder: Path,
    stages: Sequence[Stage] = (),
    own: dict[int, str] | None = None,
    **more: Any,
) -> InProcessFederation:
    """Return a federation of sites within this process; the settings are those of `make_experiment`."""
    experiment = make_experiment(list(models.values())[:1], method, stages=stages, **settings)
    from fedhead.testing.inprocess import InProcessFederation  # needs Flower

    return InProcessFederation(federation, models, experiment, folder, own or {}, **more)
