"""Checks of a single reply: schema and finiteness."""

from __future__ import annotations

import torch

from fedhead.core.system.errors import Diverged, FedheadError
from fedhead.core.system.text import printable
from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree


class Refused(FedheadError):
    """Reply that differs from the expected one."""


class Impossible(Refused):
    """Reply with numbers that no client could have computed; excluded without ending the run, in simulations too."""


def check_form(send: Tree, expected: Schema | None, client: int, round: int) -> None:
    """Raise `Refused` if names, shapes or dtypes differ from the expected schema."""
    mismatch = None if expected is None else difference(schema(send), expected)
    if mismatch is not None:
        raise Refused(f"client {client}, round {round}: {mismatch}")


def check_finite(tree: Tree, where: str) -> None:
    """Raise `Diverged` for non-finite numbers.

    Args:
        tree: Reply, client state or server state.
        where: Owner of the tree for the error message, such as "client 3, round 7".
    """
    if not all_finite([tree]):
        name = next(n for n, t in tree.leaves().items() if not bool(torch.isfinite(t).all()))
        raise Diverged(f"{where}: {name!r} is not finite any more; a smaller learning rate (lr) is the usual fix")


def difference(actual: Schema, expected: Schema) -> str | None:
    """Return the first difference between two schemas as text, or None."""
    for name in sorted(expected.keys() ^ actual.keys()):
        return f"{'missing' if name in expected else 'unexpected'} tensor {_shown(name)} in the reply"
    for name, (shape, dtype) in expected.items():
        if actual[name] != (shape, dtype):
            return f"tensor {_shown(name)} is {actual[name][0]} {actual[name][1]}, expected {shape} {dtype}"
    return None


def _shown(name: str) -> str:
    """Return a tensor name in printable form, since a client may send any text."""
    return printable(repr(name), 100)
