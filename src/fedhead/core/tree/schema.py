"""Schemas: names, shapes and dtypes of the tensors of a tree."""

from __future__ import annotations

import torch

from fedhead.core.tree.tree import Tree

Schema = dict[str, tuple[tuple[int, ...], torch.dtype]]


def schema(tree: Tree) -> Schema:
    """Return the shape and dtype of every tensor of a tree, keyed by full name."""
    return {name: (tuple(t.shape), t.dtype) for name, t in tree.leaves().items()}
