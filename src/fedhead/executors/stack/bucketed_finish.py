"""What clients make of all their samples after training, such as prototypes, in stacks of clients of similar sizes.

A stack takes as long as its largest client: of uneven clients, most of what it computes would be padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.phase import Reply
from fedhead.core.tree.tree import Weights, cat
from fedhead.executors.client.program import ClientProgram
from fedhead.executors.stack.map_clients import SIMILAR, MemoryBudget

Finish = Callable[[Weights, ClientInputs], Reply]


def bucketed_finish(
    program: ClientProgram,
    sizes: Sequence[int],
    vectorized: Callable[[ClientProgram], Finish],
    take: Callable[[ClientInputs, slice], ClientInputs],
) -> Finish:
    """Return `ClientProgram.finish` for a stack; where it reads all samples of a client, group by group.

    Args:
        program: What the clients do.
        sizes: The number of samples of each client, in the order of the stack.
        vectorized: Maps `ClientProgram.finish` to a stack.
        take: Returns the inputs of some clients of the stack.
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
        own = take(inputs, place)
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
