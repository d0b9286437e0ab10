"""Uploads: transformations of a reply between `finish` and the wire, such as clipping or compression.

A reply passes a list of uploads, first to last, before it leaves the client. The server decodes in reverse order before
it aggregates. `encode` is written for one client and is pure, like a method's hooks, so that it runs unchanged in a
loop, in a stack, in lanes and at a site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.task import Task
from fedhead.core.components.component import Component
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree
from fedhead.privacy.secure_sum.session import MIN_CLIENTS


@dataclass(frozen=True)
class Upload(Component):
    """Transformation of a client's reply on its way to the server; the base class changes nothing.

    Rounding harms sent entries that are plain sums (`Algorithm.sums`).

    Attributes:
        spares_sums: Whether plain sums are left unchanged; `encode` does not see them.
    """

    spares_sums: ClassVar[bool] = False

    def check(self, method: Method) -> None:
        """Check before the run that this upload supports a method.

        Args:
            method: The method.

        Raises:
            BadInput: If it does not.
        """

    def min_clients(self, clients: int) -> int:
        """Return the minimum number of clients in what the server sees; 1: it sees single replies.

        Args:
            clients: Number of clients in the cohort.

        Returns:
            Minimum number, which is also the number of clients that share the noise of differential privacy.
        """
        return 1

    def encode(self, send: Tree, client: Client) -> Tree:
        """Encode a reply at the client.

        Args:
            send: Entries from `finish`, or from the previous upload.
            client: The client.

        Returns:
            Encoded entries.
        """
        return send

    def decode(self, send: Tree, task: Task) -> Tree:
        """Decode a reply at the server.

        Args:
            send: Received entries.
            task: Sizes and settings.

        Returns:
            Decoded entries, for aggregation.
        """
        return send


UPLOADS = Registry.of(Upload, home=[__name__])
"""Registry of uploads."""
upload = UPLOADS.decorator
"""Class decorator that registers a subclass of `Upload` under a name for recipes and the command line."""


@upload("clip")
@dataclass(frozen=True)
class Clip(Upload):
    """Clipping of a client's update to an L2 norm of at most `norm`.

    The update is the difference between sent and received entries of the same name (the model, running
    statistics included), over all such entries together. Other entries are unchanged.
    """

    norm: Annotated[float, Above(0)] = 1.0  # maximum L2 norm of an update
    spares_sums: ClassVar[bool] = True

    def check(self, method: Method) -> None:
        """Check that the method sends a part of the model."""
        if not method.shared:
            raise BadInput(f"clip has nothing to clip: the clients of {method.name} send no part of a model")

    def encode(self, send: Tree, client: Client) -> Tree:
        """Scale the updates of all models in `send` by a common factor."""
        names = [n for n in send if isinstance(send[n], Tree) and isinstance(client.received.get(n), Tree)]
        updates = {
            name: {
                entry: t - client.received[name][entry]
                for entry, t in send[name].items()
                if isinstance(t, Tensor) and t.is_floating_point() and entry in client.received[name]
            }
            for name in names
        }
        squares = [t.square().sum() for update in updates.values() for t in update.values()]
        if not squares:
            return send
        length = torch.stack(squares).sum().sqrt()
        over, factor = length > self.norm, self.norm / length
        clipped = {
            name: send[name].replace(
                # an update within the norm stays bit-identical
                {e: torch.where(over, client.received[name][e] + factor * t, send[name][e]) for e, t in update.items()}
            )
            for name, update in updates.items()
        }
        return send.replace(clipped)


@upload("half")
@dataclass(frozen=True)
class Float16Upload(Upload):
    """Half precision (float16) uploads, with half of the bytes of single precision.

    Plain sums are not converted: counts must stay whole numbers, and sums overflow float16.
    """

    spares_sums: ClassVar[bool] = True

    def encode(self, send: Tree, client: Client) -> Tree:
        """Round to float16; overflows make the reply infinite, which the server's check reports."""
        return send.map(lambda t: t.half() if t.is_floating_point() else t)

    def decode(self, send: Tree, task: Task) -> Tree:
        """Convert numbers back to the model's dtype."""
        dtype = next(task.model.parameters()).dtype
        return send.map(lambda t: t.to(dtype) if t.dtype == torch.float16 else t)


@upload("secure_sum")
@dataclass(frozen=True)
class SecureSum(Upload):
    """Masks that cancel out in the sum over clients: the server learns the sum and no single reply.

    The protocol of Bonawitz et al. (2017) runs in the transport, so it is the last upload. Numbers are encoded as
    fixed-point integers, so the sum is exact.
    """

    range: Annotated[float, Above(0)] = 2.0**24  # largest absolute number that a client may send
    threshold: Annotated[float, AtLeast(0.5), AtMost(1)] = 2 / 3  # share of the clients that a sum covers at least
    neighbours: Annotated[int, AtLeast(2)] = 100  # largest number of clients with which a client shares masks
    spares_sums: ClassVar[bool] = True

    def min_clients(self, clients: int) -> int:
        """Return the minimum number of clients in a sum over a cohort of that many clients."""
        return max(math.ceil(self.threshold * clients - 1e-9), clients // 2 + 1, MIN_CLIENTS)


# -- the chain ----------------------------------------------------------------------------------------
def encode(uploads: Sequence[Upload], algorithm: Algorithm, send: Tree, client: Client) -> Tree:
    """Encode the entries from `finish` by all uploads, first to last."""
    for step in uploads:
        if changed := _changed(step, algorithm, send):
            send = send.replace(_same_entries(step, "encode", changed, step.encode(changed, client)))
    return send


def decode(uploads: Sequence[Upload], algorithm: Algorithm, send: Tree, task: Task) -> Tree:
    """Decode received entries by all uploads, last to first."""
    for step in reversed(uploads):
        if changed := _changed(step, algorithm, send):
            send = send.replace(_same_entries(step, "decode", changed, step.decode(changed, task)))
    return send


def _changed(step: Upload, algorithm: Algorithm, send: Tree) -> Tree:
    """Return the entries that an upload changes."""
    spared = set(algorithm.sums) if step.spares_sums else set()
    return Tree({name: value for name, value in send.items() if name not in spared})


def _same_entries(step: Upload, hook: str, given: Tree, returned: Any) -> Tree:
    """Check that a hook returned all given entries: a missing one would keep its old value."""
    if not isinstance(returned, Tree):
        raise BadInput(f"upload {step.name}: {hook} returned {type(returned).__name__}, it must return a Tree")
    if returned.keys() != given.keys():
        names = ", ".join(returned) or "nothing"
        raise BadInput(f"upload {step.name}: {hook} was given {', '.join(given)} and returned {names}: return the same")
    return returned


def exact(uploads: Sequence[Upload], algorithm: Algorithm, names: Sequence[str]) -> bool:
    """Return whether these entries arrive exactly as computed: not rounded, masked or noisy."""
    return not names or all(step.spares_sums and set(names) <= set(algorithm.sums) for step in uploads)
