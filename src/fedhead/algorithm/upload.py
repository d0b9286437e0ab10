"""Uploads: what happens to a reply between `finish` and the wire, such as clipping or compression.

What a client sends passes a list of uploads, first to last, before it leaves the client; the server undoes what must
be undone, last to first, before it aggregates. The client's half is written for one client and is pure, as a method's
hooks are, so that it runs alike in a loop, in a stack, in lanes and at a site.
"""

from __future__ import annotations

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
from fedhead.core.components.ranges import Above
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree


@dataclass(frozen=True)
class Upload(Component):
    """One step between a client's reply and the server, such as compression; this one changes nothing.

    Whether a sent entry is a plain sum (`Algorithm.sums`) decides what an upload may do to it: masks that cancel out
    need sums, and rounding harms them.

    Attributes:
        needs_sums: Whether to refuse entries that are no plain sums.
        spares_sums: Whether plain sums are left as they are; `encode` does not see them.
    """

    needs_sums: ClassVar[bool] = False
    spares_sums: ClassVar[bool] = False

    def check(self, method: Method) -> None:
        """Check, before anything is computed, that this upload can be used with a method.

        Args:
            method: The method.

        Raises:
            BadInput: If it can't.
        """

    def encode(self, send: Tree, client: Client) -> Tree:
        """Return what leaves the client.

        Args:
            send: What `finish` returned, or the previous upload.
            client: The client.

        Returns:
            What is sent in place of `send`.
        """
        return send

    def decode(self, send: Tree, task: Task) -> Tree:
        """Return what the server aggregates.

        Args:
            send: What arrived.
            task: Sizes and settings.

        Returns:
            What is aggregated in place of `send`.
        """
        return send


UPLOADS = Registry.of(Upload, home=[__name__])
"""The uploads by name."""
upload = UPLOADS.decorator
"""Register an upload under a name, for recipes and the command line: a decorator of subclasses of `Upload`."""


@upload("clip")
@dataclass(frozen=True)
class Clip(Upload):
    """Scale a client's update down to an L2 norm of at most `norm`.

    The update is the difference between what is sent and what was received under the same name (the model, running
    statistics included), over all such entries together. Entries without a counterpart pass as they are.
    """

    norm: Annotated[float, Above(0)] = 1.0  # the largest L2 norm of an update
    spares_sums: ClassVar[bool] = True

    def check(self, method: Method) -> None:
        """Refuse methods that send no part of a model."""
        if not method.shared:
            raise BadInput(f"clip has nothing to clip: the clients of {method.name} send no part of a model")

    def encode(self, send: Tree, client: Client) -> Tree:
        """Move every model in `send` towards the one that was received."""
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
                # what is not over the norm passes bit for bit
                {e: torch.where(over, client.received[name][e] + factor * t, send[name][e]) for e, t in update.items()}
            )
            for name, update in updates.items()
        }
        return send.replace(clipped)


@upload("half")
@dataclass(frozen=True)
class Float16Upload(Upload):
    """Send numbers in half precision (float16): half of the bytes of a model in single precision.

    Plain sums are left as they are: counts must stay whole numbers, and sums outgrow the type.
    """

    spares_sums: ClassVar[bool] = True

    def encode(self, send: Tree, client: Client) -> Tree:
        """Round to float16; a number that is too large for it makes the reply not finite, and the check names it."""
        return send.map(lambda t: t.half() if t.is_floating_point() else t)

    def decode(self, send: Tree, task: Task) -> Tree:
        """Bring numbers back to the type that the model is kept in."""
        dtype = next(task.model.parameters()).dtype
        return send.map(lambda t: t.to(dtype) if t.dtype == torch.float16 else t)


# -- the chain ----------------------------------------------------------------------------------------
def encode(uploads: Sequence[Upload], algorithm: Algorithm, send: Tree, client: Client) -> Tree:
    """Return what leaves a client: what `finish` returned, after all uploads."""
    for step in uploads:
        _refuse_what_is_no_sum(step, algorithm, send)
        if changed := _changed(step, algorithm, send):
            send = send.replace(_same_entries(step, "encode", changed, step.encode(changed, client)))
    return send


def decode(uploads: Sequence[Upload], algorithm: Algorithm, send: Tree, task: Task) -> Tree:
    """Return what the server aggregates: what arrived, with the uploads undone from the last to the first."""
    for step in reversed(uploads):
        if changed := _changed(step, algorithm, send):
            send = send.replace(_same_entries(step, "decode", changed, step.decode(changed, task)))
    return send


def _changed(step: Upload, algorithm: Algorithm, send: Tree) -> Tree:
    """Return the entries that an upload changes."""
    spared = set(algorithm.sums) if step.spares_sums else set()
    return Tree({name: value for name, value in send.items() if name not in spared})


def _same_entries(step: Upload, hook: str, given: Tree, returned: Any) -> Tree:
    """Refuse a result without all entries: what is missing would leave the client as it was."""
    if not isinstance(returned, Tree):
        raise BadInput(f"upload {step.name}: {hook} returned {type(returned).__name__}, it must return a Tree")
    if returned.keys() != given.keys():
        names = ", ".join(returned) or "nothing"
        raise BadInput(f"upload {step.name}: {hook} was given {', '.join(given)} and returned {names}: return the same")
    return returned


def exact(uploads: Sequence[Upload], algorithm: Algorithm, names: Sequence[str]) -> bool:
    """Return whether the server sees these entries as the client computed them: not rounded, masked or noisy."""
    return not names or all(step.spares_sums and set(names) <= set(algorithm.sums) for step in uploads)


def _refuse_what_is_no_sum(step: Upload, algorithm: Algorithm, send: Tree) -> None:
    for name in send if step.needs_sums else ():
        if name not in algorithm.sums:
            raise BadInput(
                f"the upload {step.name} works on plain sums, and {name!r}, which "
                f"{algorithm.name} sends, is none: leave the upload out, or use a method that sends sums only"
            )
