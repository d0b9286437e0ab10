"""Batches of several lanes, drawn and augmented together.

A lane's batch is small, and augmentation launches hundreds of kernels. All lanes read the same pool, so one pass draws
the batches of the next steps for all lanes, with the additional views that a loss requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedhead.core.training.batch import Batch
from fedhead.core.tree.inputs import Inputs, channels_last, map_inputs
from fedhead.data.pool import Pool, ViewsAhead
from fedhead.executors.client.client_round import draw_batch
from fedhead.executors.lanes.lane_steps import Lane

MAX_BYTES = 1 << 28  # maximum size of the inputs drawn at once, per view; augmentation takes several times as much


class LaneBatch(NamedTuple):
    """Inputs of a lane's step: the batch, the model's random key, and the pool with the batch's views."""

    batch: Batch
    key: Tensor
    pool: Pool


@dataclass
class _Alike:
    """Lanes whose batches are drawn together: same batch size and pool."""

    pool: Pool
    channels_last: bool
    places: list[int] = field(default_factory=list)
    views: set[int] = field(default_factory=set)  # requested by a loss

    def laid_out(self, x: Inputs) -> Inputs:
        """Convert images of stacked batches to channels last, if the program uses that format."""
        if not self.channels_last:
            return x
        images: Inputs = map_inputs(lambda t: channels_last(t.flatten(0, 1)).view(t.shape) if t.dim() == 5 else t, x)
        return images


class LaneBatches:
    """Batches of the next steps of lanes.

    Args:
        lanes: Lanes to draw batches for.
    """

    def __init__(self, lanes: Sequence[Lane]):
        self._lanes = lanes
        self._alike: dict[tuple[int, int], _Alike] = {}
        for place, lane in enumerate(lanes):
            program = lane.step.program
            pool = program.source(lane.step.phase.data)
            alike = _Alike(pool, program.channels_last)
            self._alike.setdefault((id(pool), lane.batch_size), alike).places.append(place)

    def are_small(self, steps: int) -> bool:
        """Return whether the batches of `steps` steps fit into `MAX_BYTES`."""
        return all(
            len(group.places) * steps * size * group.pool.sample_nbytes <= MAX_BYTES
            for (_, size), group in self._alike.items()
        )

    def draw(self, steps: int) -> list[list[LaneBatch]]:
        """Return the batches of each lane's next steps, without advancing the counters."""
        drawn: dict[int, list[LaneBatch]] = {}
        for group in self._alike.values():
            each = self._draw_alike(group, steps)
            drawn |= {place: each[k * steps : (k + 1) * steps] for k, place in enumerate(group.places)}
        return [drawn[place] for place in range(len(self._lanes))]

    def _draw_alike(self, group: _Alike, steps: int) -> list[LaneBatch]:
        parts = zip(*(self._lanes[place].draws(steps) for place in group.places), strict=True)
        indices, weight, start = (torch.cat(part) for part in parts)  # [lanes · steps, batch], and [lanes · steps]
        batch, keys = draw_batch(group.pool, indices, weight, start)
        batch = batch._replace(x=group.laid_out(batch.x))
        views = {number: group.laid_out(_view(group.pool, batch, number)) for number in group.views}
        drawn = []
        for i in range(len(indices)):
            item = Batch(*(map_inputs(lambda t, i=i: t[i], part) for part in batch))
            ahead = {number: map_inputs(lambda t, i=i: t[i], view) for number, view in views.items()}
            views_ahead = ViewsAhead(item.indices, item.key, ahead, group.views)
            drawn.append(LaneBatch(item, keys[i], group.pool.holding(views_ahead)))
        return drawn


def _view(pool: Pool, batch: Batch, number: int) -> Inputs:
    """Return an additional view of stacked batches."""
    view = pool.another_view(batch.indices.reshape(-1), batch.key.reshape(-1), number)
    inputs: Inputs = map_inputs(lambda t: t.reshape(*batch.indices.shape, *t.shape[1:]), view)
    return inputs
