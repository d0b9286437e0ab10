"""Validation of the results of users' hooks; errors name the hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs, tensors_of
from fedhead.core.tree.tree import Tree, Weights


def checked_tree(tree: Any, hook: str) -> Tree:
    """Check that a hook returned a tree of tensors, and return it.

    Args:
        tree: Return value of the hook.
        hook: Qualified name of the hook, such as FedMine.init_client.

    Raises:
        BadInput: If it is not a tree of tensors.
    """
    if not isinstance(tree, Tree):
        raise BadInput(f"{hook} returned {_kind(tree)}: return fh.Tree(name=tensor, …), or fh.Tree() for nothing")
    if all(isinstance(value, Tensor) for value in tree.tensors()):
        return tree
    name, value = next((name, value) for name, value in tree.leaves().items() if not isinstance(value, Tensor))
    raise BadInput(
        f"{hook} returned {_kind(value)} under {name!r}: a tree holds tensors and trees of tensors; use "
        "torch.tensor(…) or fh.Tree(…)"
    )


def check_weights(new: Tree, old: Tree, hook: str) -> None:
    """Check that weights are replaced by weights, since a plain tree does not distinguish buffers from parameters.

    Args:
        new: Return value of the hook.
        old: Tree that it replaces.
        hook: Qualified name of the hook.

    Raises:
        BadInput: If a plain tree replaces weights.
    """
    for name, value in new.items():
        if isinstance(old.get(name), Weights) and not isinstance(value, Weights):
            raise BadInput(
                f"{hook} returned {_kind(value)} under {name!r}, where a model's weights are expected: compute them by "
                f"map or replace, as in server[{name!r}].replace(…)"
            )


def check_broadcast(new: Tree, old: Tree, broadcast: Sequence[str], hook: str) -> None:
    """Check that a new server state has all entries of the broadcast.

    Args:
        new: Return value of the hook.
        old: Server state that it replaces.
        broadcast: Entries that every client receives, if the state has them.
        hook: Qualified name of the hook.

    Raises:
        BadInput: If an entry of the old state is missing.
    """
    for name in broadcast:
        if name in old and name not in new:
            entries = ", ".join(map(repr, new)) or "nothing"
            raise BadInput(
                f"{hook} returned a server state without {name!r}, which every client receives by `broadcast`; it has "
                f"{entries}: return server.replace(…), which keeps the other entries"
            )


def check_rows(scores: Tensor, x: Inputs, who: str) -> Tensor:
    """Check that scores have one row per sample, and return them.

    Args:
        scores: Scores of a batch, computed by the method.
        x: Inputs of the batch.
        who: Name of the method.

    Raises:
        BadInput: If the number of rows differs.
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
