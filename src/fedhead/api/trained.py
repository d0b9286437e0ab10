"""Models and predictions of a trained federation, after the rounds or after a stage."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.stage import Stage
from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.training.batch import PARTS
from fedhead.core.tree.inputs import Inputs, describe, map_inputs, shape_of, tensors_of, to_dtype, type_of
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_check import check_rows
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import arrays, named_inputs
from fedhead.data.inputs.missing_values import fill_inputs
from fedhead.data.inputs.table_columns import is_frame
from fedhead.engine.clients import global_model_tests
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import global_model, make_downlink
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.transport import Transport
from fedhead.engine.states.client_states import ClientStates
from fedhead.metrics.records import StageResult
from fedhead.models.split_model import SplitModel, load

BATCH = 1024  # samples per batch of predictions


@dataclass
class TrainedState:
    """States of server and clients after a run.

    Args:
        clients: Clients; their data may be blank if only models and predictions are needed.
        server: Server state after the last round.
        states: Client states; None if they are stored at the sites.
        round: Round of the states.
        stages: Results by stage name.
        algorithms: Stages by name, built on the method.
        with_data: Returns the trained simulation with its data.
    """

    clients: Clients
    server: Tree
    states: ClientStates | None
    round: int
    stages: dict[str, StageResult]
    algorithms: dict[str, Stage]
    with_data: Callable[[], Transport]

    def run_stage(self, stage: Stage) -> StageResult:
        """Run a stage on these states, and keep its result and states under its name."""
        result = run_stage(self.with_data(), stage)
        self.algorithms[stage.name], self.stages[stage.name] = stage.on_method(self.clients.method), result
        return result

    def after(self, stage: str | None, client: int | None = None) -> StateAfter:
        """Return the state after a stage; None: after the last round."""
        if client is not None:
            self._check_client(client)
        if stage is None:
            return StateAfter(self.clients, self.clients.method, self.server, self.states, self.round)
        if stage not in self.algorithms:
            raise (
                unknown("stage", stage, self.algorithms)
                if self.algorithms
                else BadInput(f"stage: {stage} was not run, nor any other stage; run it with result.calibrate(…)")
            )
        if stage not in self.stages:
            raise BadInput(
                f"stage: the folder holds no state after {stage}: the run was stopped before it, or its "
                f"stages.safetensors is missing; compute it with result.calibrate({stage!r}), or resume the run"
            )
        stage_type, result = type(self.algorithms[stage]), self.stages[stage]
        personal = stage_type.personal_model is not Stage.personal_model
        if self.states is None and personal and stage_type.global_model is Stage.global_model:
            raise BadInput(
                f"stage: {stage} makes personal models only, and these are at their sites: leave stage out for the "
                "global model of the rounds"
            )
        if client is not None and result.states is None:  # a folder has only the server state of a stage
            result = self.run_stage(self.algorithms[stage])
        return StateAfter(self.clients, self.algorithms[stage], result.server, result.states, self.round)

    def _check_client(self, client: int) -> None:
        count = len(self.clients.assign)
        if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < count:
            raise BadInput(f"client: {client!r} is out of range, the clients are 0 … {count - 1}")
        if self.states is None:
            raise BadInput(f"client: the model of client {client} is at its site, the server does not have it")


@dataclass(frozen=True)
class StateAfter:
    """States and predictions after the rounds or after one stage."""

    clients: Clients
    algorithm: Algorithm
    server: Tree
    states: ClientStates | None
    round: int  # last round

    def weights(self, client: int | None) -> Weights:
        """Return the weights of the global model or of a client's personal model.

        Raises:
            BadInput: If there is no global model.
        """
        if client is None:
            model = global_model(self.algorithm, self.server, self.clients.task)
            if model is None:
                name = self.algorithm.name
                raise BadInput(f"{name} leaves no global model, every client has its own: name one, client=0")
            return model
        with torch.no_grad():
            return self.algorithm.personal_model(self._client(client))

    def scores(self, x: Inputs, client: int | None) -> Tensor:
        """Return the class scores of model inputs, [N, C]."""
        clients = self.clients
        with torch.no_grad():
            if client is None:
                w = self.weights(client)
                rows = [
                    global_model_tests.scores(self.algorithm, w, part, clients.task, clients.bf16)
                    for part in _parts(x, clients)
                ]
            else:
                state = self._client(client)
                w = self.algorithm.personal_model(state)
                rows = [
                    check_rows(self.algorithm.predict(w, part, state), part, self.algorithm.name)
                    for part in _parts(x, clients)
                ]
            return torch.cat(rows).float()

    def module(self, client: int | None) -> nn.Module:
        """Return the user's module, or that of a built-in model, with the weights of this state."""
        template = self.architecture(client)
        w = self.weights(client).to("cpu").part(*PARTS)
        if template.origin is not None:
            return template.origin.assemble(template, w)
        return plain(template, w)

    def architecture(self, client: int | None) -> SplitModel:
        """Return the architecture of the global model or of a client's personal model."""
        task = self.clients.task if client is None else self.clients.task_of(client)
        return self.algorithm.architecture(task.model)

    def _client(self, client: int) -> Client:
        assert self.states is not None, "checked before"
        clients = self.clients
        downlink = make_downlink(self.algorithm, self.server, [client], clients.task_of)
        (job,) = clients.work(self.algorithm, downlink, self.states, self.round + 1, trains=False)
        return job.program.client(job.inputs(0))


def plain(model: SplitModel, w: Weights) -> nn.Module:
    """Return a sequential module of the model's parts, which computes logits and has the same weight names."""
    copied = copy.deepcopy(model).cpu()
    load(copied, w)
    parts = OrderedDict((name, part) for name, part in copied.named_children())
    return nn.Sequential(parts).eval()


def model_inputs(data: Federation, x: Any) -> Inputs:
    """Convert samples in the format of the federation to model inputs before normalization.

    Args:
        data: Federation that defines the format; it may have no samples.
        x: Samples, in any layout that matches the federation's shape. Missing values of a table are filled as in the
            federation, if the columns are the same.

    Raises:
        BadInput: If the shape or dtype differs, or missing values can't be filled.
    """
    if is_frame(x) and data.columns is not None:
        x = data.columns.encode(x, "x")
    elif is_frame(x) and not all(kind.kind in "iufb" for kind in x.dtypes):
        raise BadInput(
            "x is a data frame with columns that are no numbers: give "
            "fedhead.TableColumns.find([training_frame], columns).encode(x)"
        )
    known, stated = data.train.x, None
    if isinstance(known, Tensor):
        x = arrays.to_tensor(x, "x")
        stated = None if known.dtype == torch.uint8 or known.dim() == 4 else arrays.stored_layout(known)
        if x.dim() < known.dim() and not (known.dim() == 4 and x.dim() == 3 and known.shape[1] == 1):
            raise BadInput(
                f"x has shape {tuple(x.shape)}, the run's samples are {describe(known)}: give a batch, x[None] for one"
            )
    like, layout = named_inputs.prepare_like(x, known, stated, "x")
    converted = fill_inputs(named_inputs.convert(like, layout, "x", missing=True), data.missing)
    if (shape_of(converted), type_of(converted)) != (shape_of(known), type_of(known)):
        given, expected = describe(converted), describe(known)
        raise BadInput(f"x holds samples {given}, the run's are {expected}: give samples like those it was trained on")
    for part in tensors_of(converted):
        if part.is_floating_point() and (empty := part.isnan().flatten(1).any(1)).any():
            fix = (
                "give the table's own columns, which are filled as those of the training data were"
                if data.missing
                else 'fill it (they are filled where the federation was made with missing="mean")'
            )
            raise BadInput(f"x holds NaN, first in sample {int(empty.nonzero()[0])}: {fix}")
    return converted


def _parts(x: Inputs, clients: Clients) -> Iterator[Any]:
    """Yield normalized batches on the device of the model."""
    for begin in range(0, len(tensors_of(x)[0]), BATCH):
        part = map_inputs(lambda t, at=begin: t[at : at + BATCH].to(clients.device), x)
        yield to_dtype(clients.federation.transform(part), clients.dtype)
