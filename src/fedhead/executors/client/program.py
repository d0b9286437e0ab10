"""Work of a client in a round: pure functions of one client, and their vectorization.

The loop calls these functions directly; the stack vectorizes them over a leading client axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
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
from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import mean
from fedhead.core.training.optimizers import Optimizer, clip_norm
from fedhead.core.tree.inputs import map_inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_check import checked_tree
from fedhead.data.pool import Pool
from fedhead.privacy.sample_dp import SampleDP


@dataclass(frozen=True)
class ClientProgram:
    """Algorithm, task and data of the clients of one architecture; every method handles one client."""

    algorithm: Algorithm
    task: Task
    pool: Pool
    public: Pool | None = None
    uploads: tuple[Upload, ...] = ()  # applied to a reply before it is sent
    chunk: int = 256  # batch size of hooks that read all data of a client
    bf16: bool = False
    channels_last: bool = False
    in_place: bool = False  # whether a step updates the weights in place
    on_total: Callable[[], None] | None = None  # called when a hook reads all data of a client
    privacy: SampleDP | None = None  # DP-SGD; hooks then can't read class counts or all data
    corrects: bool = field(init=False)
    persistent: bool = field(init=False)  # False for stages, whose optimizers start without state

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrects", type(self.algorithm).correct is not Algorithm.correct)
        object.__setattr__(self, "persistent", self.task.local.persistent and isinstance(self.algorithm, Method))

    def client(
        self, inputs: ClientInputs, key: Tensor | None = None, data: str = "private", weight: Tensor | None = None
    ) -> Client:
        """Return the client that hooks see; `weight` is the mask of samples in a loss's batch."""
        pool, public = self.source(data), self.public
        options = (key, public, weight, self.on_total, self.channels_last, self.privacy is not None)
        return Client(self.task, inputs, pool, self.chunk, self.bf16, *options)

    def source(self, data: str) -> Pool:
        """Return the pool of private or public samples."""
        pool = self.pool if data == "private" else self.public
        assert pool is not None, "checked when the run was set up"
        return pool

    def reading(self, pool: Pool, data: str) -> ClientProgram:
        """Return the program with another pool of private or public samples."""
        return replace(self, pool=pool) if data == "private" else replace(self, public=pool)

    def start(self, inputs: ClientInputs) -> Weights:
        """Return the weights before the first step."""
        w: Any = self.algorithm.start(self.client(inputs))
        hook = f"{type(self.algorithm).__name__}.start"
        if not self.algorithm.phases(self.task):
            return w  # type: ignore[no-any-return]  # only passed to finish
        if not isinstance(w, Weights):
            raise BadInput(
                f"{hook} returned a {type(w).__name__}: return the weights of a model, such as "
                'client.received["model"] or a copy of it by replace(…)'
            )
        checked_tree(w, hook)
        return w

    def finish(self, w: Weights, inputs: ClientInputs) -> Reply:
        """Return the reply after the last step: small classes are left out, then uploads are applied."""
        client = self.client(inputs)
        reply = _checked(self.algorithm.finish(w, client), self.algorithm)
        send = without_small_classes(self.algorithm, reply.send, client)
        return reply._replace(send=upload.encode(self.uploads, self.algorithm, send, client))

    def changes_gradients(self, phase: Phase) -> bool:
        """Return whether the gradient is clipped or corrected."""
        return self.task.local.clip_norm is not None or (self.corrects and phase.corrects)

    def correct(self, g: Tree, inputs: ClientInputs, phase: Phase) -> Tree:
        """Apply the method's correction, then clip the gradient that the optimizer sees."""
        if self.corrects and phase.corrects:
            g = self.algorithm.correct(g, self.client(inputs))
            if not isinstance(g, Tree):
                raise BadInput(
                    f"{type(self.algorithm).__name__}.correct returned a {type(g).__name__}: return the gradient "
                    "as the optimizer is to see it, a tree with the names of g"
                )
        return g if self.task.local.clip_norm is None else clip_norm(g, self.task.local.clip_norm)

    def loss(
        self, phase: Phase, padded: bool = True
    ) -> Callable[[Tree, Weights, Batch, Tensor, ClientInputs], tuple[Tensor, Tree]]:
        """Return the phase's loss as a function of the trained parameters; it also returns updated running statistics.

        Args:
            phase: Phase of the training.
            padded: Whether the batch may have padding, which BatchNorm ignores.
        """

        def loss(params: Tree, w: Weights, batch: Batch, key: Tensor, inputs: ClientInputs) -> tuple[Tensor, Tree]:
            client = self.client(inputs, key, phase.data, batch.weight if padded else None)
            followed = self.task.objective.is_plain or phase.data != "private"
            try:
                value = reduced(phase.loss(w.replace(params), batch, client), batch, phase)
            except (RuntimeError, IndexError) as error:  # such as the cross entropy of a single logit
                if followed or client.asked_objective:
                    raise
                raise self._ignored(phase) from error
            if not (followed or client.asked_objective):
                raise self._ignored(phase)
            return value, w.stats if client.moved_stats is None else client.moved_stats

        return loss

    def clipped_sum(self, phase: Phase) -> Callable[[Tree, Weights, Batch, Tensor, ClientInputs], Tree]:
        """Return the sum over a batch of the samples' gradients, each clipped, as a function of the parameters."""
        assert self.privacy is not None, "gradients are clipped for DP-SGD"
        # vmap can't query memory formats
        loss, clip = replace(self, channels_last=False).loss(phase), self.privacy.clip

        def gradient(params: Tree, w: Weights, sample: Batch, key: Tensor, inputs: ClientInputs) -> Tree:
            single = Batch(map_inputs(lambda t: t.unsqueeze(0), sample.x), *(t.unsqueeze(0) for t in sample[1:]))
            g: Tree = torch.func.grad(lambda each: loss(each, w, single, key, inputs)[0])(params)
            return g

        def total(params: Tree, w: Weights, batch: Batch, key: Tensor, inputs: ClientInputs) -> Tree:
            keys = random.fold_in(key, torch.arange(len(batch.y), device=key.device))
            g: Tree = torch.vmap(gradient, (None, None, 0, 0, None))(params, w, batch, keys, inputs)
            norm = torch.stack([t.flatten(1).norm(dim=1) for t in g.values()]).norm(dim=0)
            # a gradient that is not finite counts as 0: an error would reveal that a sample has one
            factor = batch.weight.to(norm.dtype) * (clip / norm.clamp_min(clip)).where(norm.isfinite(), 0)
            return g.map(lambda t: (factor @ t.flatten(1).nan_to_num(0, 0, 0)).reshape(t.shape[1:]))

        return total

    def _ignored(self, phase: Phase) -> BadInput:
        """Return the error of a user's loss that ignores the objective of the run."""
        objective = self.task.objective
        name = f"objective={objective.name}" if objective.adjusted is None else objective.adjusted
        return BadInput(
            f"{loss_name(phase)} does not use {name}: let it add client.loss(logits, batch) for the cross entropy, or "
            "leave the setting out"
        )


def _checked(reply: Any, algorithm: Algorithm) -> Reply:
    """Check that `finish` returned a reply of trees."""
    if isinstance(reply, Reply) and isinstance(reply.send, Tree) and isinstance(reply.keep, Tree):
        for tree in (reply.send, reply.keep):
            checked_tree(tree, f"{type(algorithm).__name__}.finish")
        return reply
    kind = type(reply).__name__
    if isinstance(reply, Reply):
        kind = f"Reply(send={type(reply.send).__name__}, keep={type(reply.keep).__name__})"
    raise BadInput(
        f"{type(algorithm).__name__}.finish returned {kind}: return fh.Reply(send=fh.Tree(model=w), keep=fh.Tree()), "
        f"with what is sent and what the client keeps"
    )


def reduced(value: Tensor, batch: Batch, phase: Phase) -> Tensor:
    """Reduce a loss to one number: average values per sample, without padding.

    Raises:
        BadInput: If the loss is neither a number nor one value per sample.
    """
    shape = tuple(value.shape) if isinstance(value, Tensor) else None
    if shape == ():
        return value
    if shape != tuple(batch.weight.shape):
        returned = f"a {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"
        raise BadInput(
            f"{loss_name(phase)} returned {returned}: return one number, or one value per sample, "
            f"here of shape {list(batch.weight.shape)}"
        )
    return mean(value, batch.weight.to(value.dtype))


def loss_name(phase: Phase) -> str:
    """Return the qualified name of a phase's loss, such as FedProx.loss."""
    owner = getattr(phase.loss, "__self__", None)
    name = getattr(phase.loss, "__name__", repr(phase.loss))
    return name if owner is None else f"{type(owner).__name__}.{name}"


class Vectorizer:
    """Identity vectorizer, for one client at a time; base class of others."""

    def start(self, program: ClientProgram) -> Callable[[ClientInputs], Weights]:
        """Return the vectorized `ClientProgram.start`."""
        return program.start

    def finish(self, program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
        """Return the vectorized `ClientProgram.finish`."""
        return program.finish

    def correct(self, program: ClientProgram, phase: Phase) -> Callable[[Tree, ClientInputs], Tree]:
        """Return the vectorized `ClientProgram.correct`."""
        return partial(program.correct, phase=phase)

    def loss(self, program: ClientProgram, phase: Phase, padded: bool) -> Callable[..., tuple[Tensor, Tree]]:
        """Return the vectorized `ClientProgram.loss`."""
        return program.loss(phase, padded)

    def clipped_sum(self, program: ClientProgram, phase: Phase) -> Callable[..., Tree]:
        """Return the vectorized `ClientProgram.clipped_sum`."""
        return program.clipped_sum(phase)

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """Return the vectorized `Optimizer.init`."""
        return optimizer.init
