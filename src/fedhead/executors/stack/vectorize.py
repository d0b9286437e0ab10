"""Vectorization of a client program over a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.func import vmap

from fedhead.algorithm.client import INPUT_DIMS, ClientInputs
from fedhead.algorithm.phase import Phase, Reply
from fedhead.core.training.optimizers import Optimizer
from fedhead.core.tree.tree import Tree, Weights, cat
from fedhead.executors.client.program import ClientProgram, Vectorizer
from fedhead.executors.kernels.layers import with_stacked_layers
from fedhead.executors.stack.map_clients import SIMILAR, MemoryBudget
from fedhead.executors.stack.tree_vmap import tree_vmap


class VmapVectorizer(Vectorizer):
    """Vectorizer over a stack of clients, with `torch.func.vmap`.

    Args:
        sizes: Number of samples of each client. Hooks that read all samples then process clients of similar sizes
            together. None: all clients at once.
    """

    def __init__(self, sizes: Sequence[int] | None = None):
        self._sizes = sizes

    def start(self, program: ClientProgram) -> Callable[[ClientInputs], Weights]:
        """Vectorize `ClientProgram.start` over the client axis."""
        return tree_vmap(program.start)

    def finish(self, program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
        """Vectorize `ClientProgram.finish` over the client axis, with stacked layers."""

        def vectorized(program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
            return with_stacked_layers(tree_vmap(program.finish), program.pool.device)

        return vectorized(program) if self._sizes is None else bucketed_finish(program, self._sizes, vectorized)

    def correct(self, program: ClientProgram, phase: Phase) -> Callable[[Tree, ClientInputs], Tree]:
        """Vectorize `ClientProgram.correct` over the client axis."""
        return vmap(partial(program.correct, phase=phase), in_dims=(0, INPUT_DIMS))

    def loss(self, program: ClientProgram, phase: Phase, padded: bool) -> Callable[..., tuple[Tensor, Tree]]:
        """Vectorize `ClientProgram.loss` over the client axis, with stacked layers."""
        loss = vmap(program.loss(phase, padded), in_dims=(0, 0, 0, 0, INPUT_DIMS))
        return with_stacked_layers(loss, program.pool.device)

    def clipped_sum(self, program: ClientProgram, phase: Phase) -> Callable[..., Tree]:
        """Vectorize `ClientProgram.clipped_sum` over the client axis."""
        return vmap(program.clipped_sum(phase), in_dims=(0, 0, 0, 0, INPUT_DIMS))

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """Vectorize `Optimizer.init` over the client axis."""
        return tree_vmap(optimizer.init)


# -- hooks that read all samples ----------------------------------------------------------------------
Finish = Callable[[Weights, ClientInputs], Reply]


def bucketed_finish(
    program: ClientProgram,
    sizes: Sequence[int],
    vectorized: Callable[[ClientProgram], Finish],
) -> Finish:
    """Return `ClientProgram.finish` for a stack; if it reads all samples, clients are grouped by size.

    Args:
        program: Algorithm, task and data.
        sizes: Number of samples of each client, in stack order.
        vectorized: Vectorizes `ClientProgram.finish` over a stack.
    """
    groups = similar_sizes(sizes)
    if len(groups) == 1:
        return vectorized(program)

    def finish(w: Weights, inputs: ClientInputs) -> Reply:
        # Tried in each round: a method may read samples only in some rounds, and a cached answer is lost on resuming.
        with suppress(_ReadsSamples):
            return vectorized(replace(program, on_total=_stop))(w, inputs)
        replies = [group(place, w, inputs) for place in groups]
        return Reply(*map(cat, zip(*replies, strict=True)))

    def group(place: slice, w: Weights, inputs: ClientInputs) -> Reply:
        longest, count = max(sizes[place]), place.stop - place.start
        part = inputs.take(place)
        part = part._replace(indices=part.indices[:, :longest], mask=part.mask[:, :longest])
        samples = MemoryBudget.on(program.pool.device).samples  # per batch, of all clients of the group
        chunked = replace(program, chunk=max(program.chunk, samples // count))
        return vectorized(chunked)(w.map(lambda t: t[place]), part)

    return finish


class _ReadsSamples(BaseException):
    """Signal that a hook is about to read all samples; not an `Exception`, which a hook might catch."""


def _stop() -> None:
    raise _ReadsSamples


def similar_sizes(sizes: Sequence[int]) -> list[slice]:
    """Group neighbors with at least half as many samples as the first of their group.

    >>> similar_sizes([100, 60, 40, 25, 10])
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    begins = [0]
    for place, size in enumerate(sizes):
        if size < SIMILAR * sizes[begins[-1]]:
            begins.append(place)
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], len(sizes)], strict=True)]
