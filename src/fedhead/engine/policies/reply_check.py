"""The checks of a single reply, its form and whether it is finite, before which nothing of a round is kept."""

from __future__ import annotations

import torch

from fedhead.core.system.errors import Diverged, FedheadError
from fedhead.core.system.text import printable
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree


class Refused(FedheadError):
    """A reply that is not what was asked for."""


class Impossible(Refused):
    """A reply of the right form whose numbers no client could have computed: it is left out, in simulations too."""


def check_form(send: Tree, expected: Schema | None, client: int, round: int) -> None:
    """Raise `Refused` for other names, shapes or types than expected."""
    odd = None if expected is None else difference(schema(send), expected)
    if odd is not None:
        raise Refused(f"client {client}, round {round}: {odd}")


def check_finite(tree: Tree, where: str) -> None:
    """Raise `Diverged` for numbers that are not finite.

    Args:
        tree: What a client sent or keeps, or the server's state.
        where: How the error refers to its owner, such as "client 3, round 7".
    """
    if not all_finite([tree]):
        name = next(n for n, t in tree.leaves().items() if not bool(torch.isfinite(t).all()))
        raise Diverged(f"{where}: {name!r} is not finite any more; a smaller learning rate (lr) is the usual fix")


def difference(found: Schema, expected: Schema) -> str | None:
    """Return the first difference between what came and what was expected, None if there is none."""
    for name in sorted(expected.keys() ^ found.keys()):
        return f"{'missing' if name in expected else 'unexpected'} tensor {_shown(name)} in the reply"
    for name, (shape, dtype) in expected.items():
        if found[name] != (shape, dtype):
            return f"tensor {_shown(name)} is {found[name][0]} {found[name][1]}, expected {shape} {dtype}"
    return None


def _shown(name: str) -> str:
    """A tensor's name as a client sent it, which may be anything."""
    return printable(repr(name), 100)
