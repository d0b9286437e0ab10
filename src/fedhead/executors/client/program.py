"""A client's work in a round, as pure functions for one client, and how they are vectorized.

An executor vectorizes these functions: the plain loop calls them as they are, the stack maps them over a leading client
axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from fedhead.algorithm import upload
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.class_rows import without_small_classes
from fedhead.algorithm.client import Client, ClientInputs
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.algorithm.upload import Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import mean
from fedhead.core.training.optimizers import Optimizer, clip_norm
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_check import checked_tree
from fedhead.data.pool import Pool


@dataclass(frozen=True)
class ClientProgram:
    """The work of the clients of one architecture in an exchange; every method here is written for one client."""

    algorithm: Algorithm
    task: Task
    pool: Pool
    public: Pool | None = None
    uploads: tuple[Upload, ...] = ()  # what a reply passes before it leaves the client
    chunk: int = 256  # samples at a time where a hook runs over all of a client's data
    bf16: bool = False
    channels_last: bool = False
    in_place: bool = False  # whether a step writes over the weights that the step before it made
    on_total: Callable[[], None] | None = None  # called when a hook runs over all of a client's data
    corrects: bool = field(init=False)
    persistent: bool = field(init=False)  # stages start their optimizers afresh

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrects", type(self.algorithm).correct is not Algorithm.correct)
        object.__setattr__(self, "persistent", self.task.local.persistent and isinstance(self.algorithm, Method))

    def client(
        self, inputs: ClientInputs, key: Tensor | None = None, data: str = "private", weight: Tensor | None = None
    ) -> Client:
        """The client behind these tensors; `weight` tells samples from padding in the batch of a loss."""
        pool, public = self.source(data), self.public
        more = (key, public, weight, self.on_total, self.channels_last)
        return Client(self.task, inputs, pool, self.chunk, self.bf16, *more)

    def source(self, data: str) -> Pool:
        """The pool that a phase trains on."""
        pool = self.pool if data == "private" else self.public
        assert pool is not None, "checked when the run was set up"
        return pool

    def reading(self, pool: Pool, data: str) -> ClientProgram:
        """The same program with another pool behind one kind of data."""
        return replace(self, pool=pool) if data == "private" else replace(self, public=pool)

    def start(self, inputs: ClientInputs) -> Weights:
        """The weights before the first step."""
        w: Any = self.algorithm.start(self.client(inputs))
        hook = f"{type(self.algorithm).__name__}.start"
        if not self.algorithm.phases(self.task):
            return w  # type: ignore[no-any-return]  # it is only handed on to finish
        if not isinstance(w, Weights):
            raise BadInput(
                f"{hook} returned a {type(w).__name__}: return the weights of a model, such as "
                'client.received["model"] or a copy of it by replace(…)'
            )
        checked_tree(w, hook)
        return w

    def finish(self, w: Weights, inputs: ClientInputs) -> Reply:
        """What is sent, without small classes and as the uploads leave it, and what is kept after the last step."""
        client = self.client(inputs)
        reply = _checked(self.algorithm.finish(w, client), self.algorithm)
        send = without_small_classes(self.algorithm, reply.send, client)
        return reply._replace(send=upload.encode(self.uploads, self.algorithm, send, client))

    def changes_gradients(self, phase: Phase) -> bool:
        """Whether the optimizer sees another gradient than the loss has."""
        return self.task.local.clip_norm is not None or (self.corrects and phase.corrects)

    def correct(self, g: Tree, inputs: ClientInputs, phase: Phase) -> Tree:
        """The gradient that the optimizer sees: clipped, then as the method corrects it."""
        if self.task.local.clip_norm is not None:
            g = clip_norm(g, self.task.local.clip_norm)
        if not (self.corrects and phase.corrects):
            return g
        corrected = self.algorithm.correct(g, self.client(inputs))
        if not isinstance(corrected, Tree):
            raise BadInput(
                f"{type(self.algorithm).__name__}.correct returned a {type(corrected).__name__}: return the gradient "
                "as the optimizer is to see it, a tree with the names of g"
            )
        return corrected

    def loss(
        self, phase: Phase, padded: bool = True
    ) -> Callable[[Tree, Weights, Batch, Tensor, ClientInputs], tuple[Tensor, Tree]]:
        """The phase's loss as a function of what it trains, with the running statistics that it moved.

        Args:
            phase: The phase.
            padded: Whether the batch may have padding, which BatchNorm leaves out.
        """

        def loss(params: Tree, w: Weights, batch: Batch, key: Tensor, inputs: ClientInputs) -> tuple[Tensor, Tree]:
            client = self.client(inputs, key, phase.data, batch.weight if padded else None)
            followed = self.task.objective.is_plain or phase.data != "private"
            try:
                value = reduced(phase.loss(w.replace(params), batch, client), batch, phase)
            except (RuntimeError, IndexError) as error:  # such as a cross entropy of a single logit
                if followed or client.asked_objective:
                    raise
                raise self._ignored(phase) from error
            if not (followed or client.asked_objective):
                raise self._ignored(phase)
            return value, w.stats if client.moved_stats is None else client.moved_stats

        return loss

    def _ignored(self, phase: Phase) -> BadInput:
        """Return the error of a loss of one's own, which would train by another objective than the run's."""
        objective = self.task.objective
        what = f"objective={objective.name}" if objective.adjusted is None else objective.adjusted
        return BadInput(
            f"{loss_name(phase)} does not use {what}: let it add client.loss(logits, batch) for the cross entropy, or "
            "leave the setting out"
        )


def _checked(reply: Any, algorithm: Algorithm) -> Reply:
    """Refuse what is no reply, before it fails somewhere inside."""
    if isinstance(reply, Reply) and isinstance(reply.send, Tree) and isinstance(reply.keep, Tree):
        for tree in (reply.send, reply.keep):
            checked_tree(tree, f"{type(algorithm).__name__}.finish")
        return reply
    found = type(reply).__name__
    if isinstance(reply, Reply):
        found = f"Reply(send={type(reply.send).__name__}, keep={type(reply.keep).__name__})"
    raise BadInput(
        f"{type(algorithm).__name__}.finish returned {found}: return fh.Reply(send=fh.Tree(model=w), keep=fh.Tree()), "
        f"with what is sent and what the client keeps"
    )


def reduced(value: Tensor, batch: Batch, phase: Phase) -> Tensor:
    """A loss as one number: one value per sample is averaged over the samples, padding left out.

    Raises:
        BadInput: The loss is neither a number nor one value per sample.
    """
    shape = tuple(value.shape) if isinstance(value, Tensor) else None
    if shape == ():
        return value
    if shape != tuple(batch.weight.shape):
        found = f"a {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"
        raise BadInput(
            f"{loss_name(phase)} returned {found}: return one number, or one value per sample, "
            f"here of shape {list(batch.weight.shape)}"
        )
    return mean(value, batch.weight.to(value.dtype))


def loss_name(phase: Phase) -> str:
    """A phase's loss as its author calls it, such as FedProx.loss."""
    owner = getattr(phase.loss, "__self__", None)
    name = getattr(phase.loss, "__name__", repr(phase.loss))
    return name if owner is None else f"{type(owner).__name__}.{name}"


class Vectorizer:
    """How functions of one client are vectorized: here not at all, one client at a time."""

    def start(self, program: ClientProgram) -> Callable[[ClientInputs], Weights]:
        """`ClientProgram.start` for this executor."""
        return program.start

    def finish(self, program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
        """`ClientProgram.finish` for this executor."""
        return program.finish

    def correct(self, program: ClientProgram, phase: Phase) -> Callable[[Tree, ClientInputs], Tree]:
        """`ClientProgram.correct` for this executor."""
        return partial(program.correct, phase=phase)

    def loss(self, program: ClientProgram, phase: Phase, padded: bool) -> Callable[..., tuple[Tensor, Tree]]:
        """`ClientProgram.loss` for this executor."""
        return program.loss(phase, padded)

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """`Optimizer.init` for this executor."""
        return optimizer.init
