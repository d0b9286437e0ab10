"""Steps of lanes: one client's step on static tensors, compiled once per architecture for all lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import clone_for_in_place
from fedhead.core.tree.tree import Tree
from fedhead.data.pool import Pool
from fedhead.executors.client.client_round import PhaseBatches, PhaseRun, draw_batch
from fedhead.executors.compiling.step import InPlace, compile_step, warn_not_compiled
from fedhead.executors.stack.step_graphs import cache_key, copy_each, copy_into


class Lane:
    """Static tensors and step of one client.

    Args:
        phase_run: Example of the phases to train.
        in_place: Whether the optimizer updates the static tensors in place, with one fused kernel. Not needed with the
            compiler, which fuses the copies.
    """

    def __init__(self, phase_run: PhaseRun, in_place: bool):
        self.step, self.last = phase_run.step, len(phase_run.batches) - 1
        # clone keeps the memory format of filters, which selects torch's kernels
        self.carry, self.w, self.inputs, self.batches = pytree.tree_map(
            torch.clone, (*phase_run[2:], phase_run.batches[:3])
        )
        if in_place and _can_be_fused(self.carry.params):
            params, opt = clone_for_in_place(self.carry.params, self.carry.opt)
            self.carry = self.carry._replace(params=params, opt=opt)
            self.step = replace(self.step, program=replace(self.step.program, in_place=True))
        self.counter = torch.zeros((), dtype=torch.int64, device=phase_run.batches.indices.device)
        self.draw = pytree.tree_map(torch.clone, self._draw())
        self.key = step_key(phase_run)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def load(self, phase_run: PhaseRun) -> None:
        """Copy the inputs of a round into the static tensors."""
        copy_into((self.carry, self.w, self.inputs, self.batches), (*phase_run[2:], phase_run.batches[:3]))
        self.counter.zero_()

    def take(self, work: InPlace, arguments: list[Tensor]) -> None:
        """Run one step in place; a finished lane repeats its last batch, and the result is discarded."""
        with torch.no_grad():
            copy_into(self.draw, self._draw())
        work(*arguments)
        with torch.no_grad():
            self.counter.add_(1)

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return int(self.batches[0].shape[-1])

    def draws(self, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sample indices and weights of the next steps, [steps, batch], and their keys, [steps]."""
        indices, weight, start = self.batches
        at = (self.counter + torch.arange(steps, device=indices.device)).clamp(max=self.last)
        return indices.index_select(0, at), weight.index_select(0, at), random.fold_in(start, at)

    def take_drawn(self, batch: Batch, key: Tensor, pool: Pool, padded: bool) -> None:
        """Run one step in place with a precomputed batch.

        Args:
            batch: Batch of the step.
            key: Random key of the model.
            pool: Pool with views of the batch.
            padded: Whether batches may have padding.
        """
        step = replace(self.step, program=self.step.program.reading(pool, self.step.phase.data))
        new = step(self.carry, self.w, batch, key, self.inputs, padded)
        with torch.no_grad():
            copy_into(self.carry, new)
            self.counter.add_(1)

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        indices, weight, start = self.batches
        return PhaseBatches(indices, weight, start, None).at(self.counter.clamp(max=self.last))

    def flat(self, padded: bool, write: Callable[[Any, Any], None]) -> tuple[InPlace, list[Tensor], int]:
        """Return the step as a function of tensors, its arguments, and how many leading arguments it changes in place.

        Args:
            padded: Whether batches may have padding.
            write: Copies the new carry into the old one.
        """
        pool = self.step.program.source(self.step.phase.data)
        changed, shape = pytree.tree_flatten(self.carry)
        read, read_shape = pytree.tree_flatten((self.w, self.inputs, self.draw, pool.x, pool.y))

        def function(*tensors: Tensor) -> None:
            carry = pytree.tree_unflatten(list(tensors[: len(changed)]), shape)
            w, inputs, drawn, x, y = pytree.tree_unflatten(list(tensors[len(changed) :]), read_shape)
            data = pool.with_data(x, y)
            step = replace(self.step, program=self.step.program.reading(data, self.step.phase.data))
            batch, key = draw_batch(data, *drawn)
            new = step(carry, w, batch, key, inputs, padded)
            with torch.no_grad():
                write(carry, new)

        return function, [*changed, *read], len(changed)


def _can_be_fused(params: Tree) -> bool:
    """Return whether torch's fused optimizers support these parameters: all of one dtype, and float32 on a GPU."""
    dtypes = {t.dtype for t in params.values()}
    on_cpu = all(t.device.type == "cpu" for t in params.values())
    return len(dtypes) == 1 and (on_cpu or dtypes == {torch.float32})


class CompiledSteps:
    """Compiled steps of lanes, one per architecture and phase, with and without padding.

    Args:
        wanted: Whether to compile; a step that can't be compiled runs uncompiled.
    """

    def __init__(self, wanted: bool):
        self.wanted = wanted
        self._steps: dict[tuple[str, bool], InPlace | None] = {}  # None: can't be compiled

    @property
    def complete(self) -> bool:
        """True if all steps up to now are compiled."""
        return self.wanted and None not in self._steps.values()

    def __call__(self, lane: Lane, padded: bool) -> tuple[InPlace, list[Tensor]]:
        """Return a lane's step, compiled if wanted, and its arguments."""
        function, arguments, changed = lane.flat(padded, copy_each if self.wanted else copy_into)
        key = lane.key, padded
        if self.wanted and key not in self._steps:
            try:
                self._steps[key] = compile_step(function, arguments, changed)
            except Exception as error:  # the uncompiled step gives the same result
                warn_not_compiled(error)
                self._steps[key] = None
        return self._steps.get(key) or function, arguments


def step_key(phase_run: PhaseRun) -> str:
    """Return the cache key of compiled steps, which is independent of the number of batches."""
    first = PhaseBatches(phase_run.batches.indices[:1], *phase_run.batches[1:])
    return cache_key(phase_run._replace(batches=first))
