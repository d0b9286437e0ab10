"""The functions of a program, each of one client, for a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.func import vmap

from fedhead.algorithm.client import INPUT_DIMS, ClientInputs
from fedhead.algorithm.phase import Phase, Reply
from fedhead.core.training.optimizers import Optimizer
from fedhead.core.tree.tree import Tree, Weights, cat
from fedhead.executors.client.program import ClientProgram, Vectorizer
from fedhead.executors.kernels.layers import stacked_layers
from fedhead.executors.stack.map_clients import SIMILAR, MemoryBudget
from fedhead.executors.stack.tree_vmap import tree_vmap


class VmapVectorizer(Vectorizer):
    """Maps functions of one client to a stack of clients.

    Args:
        sizes: The number of samples of each client: what takes all of them is computed for clients of similar sizes at
            a time. None: for all clients at once.
    """

    def __init__(self, sizes: Sequence[int] | None = None):
        self._sizes = sizes

    def start(self, program: ClientProgram) -> Callable[[ClientInputs], Weights]:
        """Vectorize `ClientProgram.start` over the client axis."""
        return tree_vmap(program.start, (INPUT_DIMS,))

    def finish(self, program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
        """Vectorize `ClientProgram.finish` over the client axis, with layers made for stacks."""

        def vectorized(program: ClientProgram) -> Callable[[Weights, ClientInputs], Reply]:
            finish = tree_vmap(program.finish, (0, INPUT_DIMS))

            def with_stacked_layers(w: Weights, inputs: ClientInputs) -> Reply:
                with stacked_layers(program.pool.device):
                    reply: Reply = finish(w, inputs)
                return reply

            return with_stacked_layers

        if self._sizes is None:
            return vectorized(program)
        return bucketed_finish(program, self._sizes, vectorized)

    def correct(self, program: ClientProgram, phase: Phase) -> Callable[[Tree, ClientInputs], Tree]:
        """Vectorize `ClientProgram.correct` over the client axis."""
        return vmap(partial(program.correct, phase=phase), in_dims=(0, INPUT_DIMS))

    def loss(self, program: ClientProgram, phase: Phase, padded: bool) -> Callable[..., tuple[Tensor, Tree]]:
        """Vectorize `ClientProgram.loss` over the client axis, with layers made for stacks."""
        loss = vmap(program.loss(phase, padded), in_dims=(0, 0, 0, 0, INPUT_DIMS))

        def with_stacked_layers(*args: Any) -> tuple[Tensor, Tree]:
            with stacked_layers(program.pool.device):
                return loss(*args)

        return with_stacked_layers

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """Vectorize `Optimizer.init` over the client axis."""
        return tree_vmap(optimizer.init, (0,))


# -- what clients make of all their samples -----------------------------------------------------------
Finish = Callable[[Weights, ClientInputs], Reply]


def bucketed_finish(
    program: ClientProgram,
    sizes: Sequence[int],
    vectorized: Callable[[ClientProgram], Finish],
) -> Finish:
    """Return `ClientProgram.finish` for a stack; where it reads all samples of a client, group by group.

    Args:
        program: What the clients do.
        sizes: The number of samples of each client, in the order of the stack.
        vectorized: Maps `ClientProgram.finish` to a stack.
    """

    groups = similar_sizes(sizes)
    if len(groups) == 1:
        return vectorized(program)

    def finish(w: Weights, inputs: ClientInputs) -> Reply:
        # Asked anew in each round: a method may read samples in some rounds alone, and a resumed run has no memory.
        with suppress(_ReadsSamples):
            return vectorized(replace(program, on_total=_stop))(w, inputs)
        replies = [group(place, w, inputs) for place in groups]
        return Reply(*map(cat, zip(*replies, strict=True)))

    def group(place: slice, w: Weights, inputs: ClientInputs) -> Reply:
        longest, count = max(sizes[place]), place.stop - place.start
        own = inputs.take(place)
        own = own._replace(rows=own.rows[:, :longest], mask=own.mask[:, :longest])
        samples = MemoryBudget.on(program.pool.device).samples  # at once, of all clients of the group
        chunked = replace(program, chunk=max(program.chunk, samples // count))
        return vectorized(chunked)(w.map(lambda t: t[place]), own)

    return finish


class _ReadsSamples(BaseException):
    """Ends a hook of the whole stack that is about to read all samples; no `Exception`, which a hook might catch."""


def _stop() -> None:
    raise _ReadsSamples


def similar_sizes(sizes: Sequence[int]) -> list[slice]:
    """Return neighbors that have at least half as many samples as the first of them.

    >>> similar_sizes([100, 60, 40, 25, 10])
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    begins = [0]
    for place, size in enumerate(sizes):
        if size < SIMILAR * sizes[begins[-1]]:
            begins.append(place)
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], len(sizes)], strict=True)]
