"""Checks of the results of users' hooks, which name the hook before the result fails somewhere inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs, tensors_of
from fedhead.core.tree.tree import Tree, Weights


def checked_tree(found: Any, hook: str) -> Tree:
    """Check that a hook has returned a tree of tensors.

    Args:
        found: What it returned.
        hook: The hook as its author calls it, such as FedMine.init_client.

    Raises:
        BadInput: If it is something else.
    """
    if not isinstance(found, Tree):
        raise BadInput(f"{hook} returned {_kind(found)}: return fh.Tree(name=tensor, …), or fh.Tree() for nothing")
    if all(isinstance(value, Tensor) for value in found.tensors()):
        return found
    name, value = next((name, value) for name, value in found.leaves().items() if not isinstance(value, Tensor))
    raise BadInput(
        f"{hook} returned {_kind(value)} under {name!r}: a tree holds tensors and trees of tensors; use "
        "torch.tensor(…) or fh.Tree(…)"
    )


def check_weights(new: Tree, old: Tree, hook: str) -> None:
    """Refuse plain trees in place of a model's weights, whose buffers they do not tell from its parameters.

    Args:
        new: What a hook returned.
        old: What it takes the place of.
        hook: The hook as its author calls it.

    Raises:
        BadInput: If there is one.
    """
    for name, value in new.items():
        if isinstance(old.get(name), Weights) and not isinstance(value, Weights):
            raise BadInput(
                f"{hook} returned {_kind(value)} under {name!r}, where a model's weights are expected: compute them by "
                f"map or replace, as in server[{name!r}].replace(…)"
            )


def check_broadcast(new: Tree, old: Tree, broadcast: Sequence[str], hook: str) -> None:
    """Refuse a server's state that lacks what the clients of the next round are to receive.

    Args:
        new: What a hook returned.
        old: What it takes the place of.
        broadcast: The entries that every client receives, where the state has them.
        hook: The hook as its author calls it.

    Raises:
        BadInput: If an entry of the old state is missing.
    """
    for name in broadcast:
        if name in old and name not in new:
            there = ", ".join(map(repr, new)) or "nothing"
            raise BadInput(
                f"{hook} returned a server state without {name!r}, which every client receives by `broadcast`; it has "
                f"{there}: return server.replace(…), which keeps the other entries"
            )


def check_rows(scores: Tensor, x: Inputs, who: str) -> Tensor:
    """Return the scores of a batch, if there is one row for each sample.

    Args:
        scores: What a method made of a model's outputs.
        x: The batch.
        who: The method.

    Raises:
        BadInput: If there are other rows.
    """
    count = len(tensors_of(x)[0])
    if scores.dim() and len(scores) == count:
        return scores
    raise BadInput(
        f"{who}: the scores of a test batch of {count} have the shape {list(scores.shape)}, not one row per sample: a "
        "model's squeeze() without a dimension drops that of a single sample, use flatten(1)"
    )


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
