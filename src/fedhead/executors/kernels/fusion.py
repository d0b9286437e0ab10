"""Graph fusion of a step: a ReLU, with an addition before it, is fused into the preceding normalization.

The compiler can't fuse anything into a custom operator. The traced graph holds the forward and the backward pass. Here
`relu(norm(x))` and `relu(norm(x) + skip)` become one operator each. Their backward operators are fused too, if only the
ReLU's gradient lies between them: the sign is recomputed from x, and the gradient is stored once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default)


def fuse(graph: GraphModule) -> GraphModule:
    """Fuse additions and ReLUs into the normalizations of a traced step, in place.

    Args:
        graph: Graph of `aten` operators and those of `fedhead.executors.kernels`.
    """
    rectified = {}  # output of each fused ReLU -> its normalization
    for norm in _calls(graph, "stacked_normalize"):
        output = _fuse_relu(graph, norm)
        if output is not None and norm.args[1] is None:  # with skip, x alone does not give the ReLU's sign
            rectified[output] = norm
    for gradients in _calls(graph, "stacked_normalize_gradients"):
        _fuse_relu_gradient(gradients, rectified)
    graph.graph.lint()
    graph.recompile()
    return graph


def _calls(graph: GraphModule, name: str) -> Iterator[Node]:
    """Yield the calls of a custom operator."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and str(node.target) == f"fedhead.{name}.default":
            yield node


def _fuse_relu(graph: GraphModule, norm: Node) -> Node | None:
    """Fuse a ReLU, and an addition before it, into a normalization; return the replacement of the ReLU."""
    chain = list(_views_of(norm))
    last = chain[-1]
    user = _only_user(last)
    skip = None
    if user is not None and user.target is aten.add.Tensor and not user.kwargs:
        first, second = _arguments(user)
        skip = second if first is last else first
        if not isinstance(skip, Node) or skip is last or not _alike(skip, last):
            return None
        user = _only_user(user)
    if user is None or user.target is not aten.relu.default:
        return None
    total = _arguments(user)[0]
    if skip is not None:
        with graph.graph.inserting_before(total):
            skip = _undo(graph, skip, chain)
        for node in chain:  # move them behind skip, which may be computed later
            total.prepend(node)
    norm.update_arg(1, skip)
    norm.update_arg(9, True)
    user.replace_all_uses_with(last)
    graph.graph.erase_node(user)
    if skip is not None:
        graph.graph.erase_node(total)
    return last


def _fuse_relu_gradient(gradients: Node, rectified: dict[Node, Node]) -> None:
    """Fuse the gradient of a ReLU into that of its normalization."""
    x, grad, *_ = _arguments(gradients)
    path = []
    while grad.target in VIEWS and len(grad.users) == 1:
        path.append(grad)
        grad = _arguments(grad)[0]
    if grad.target is not aten.threshold_backward.default or len(grad.users) != 1:
        return
    before, output, threshold = _arguments(grad)
    while output.target is aten.detach.default:
        output = _arguments(output)[0]
    norm = rectified.get(output)
    if norm is None or threshold != 0 or _arguments(norm)[0] is not x or not _alike(before, grad):
        return
    for view in path:
        if view.target is not aten.permute.default:
            view.target = aten.reshape.default  # the memory layout may differ
    grad.replace_all_uses_with(before)
    grad.graph.erase_node(grad)
    gradients.update_arg(9, True)


def _views_of(node: Node) -> Iterator[Node]:
    """Yield a node and the chain of views that follows it."""
    while True:
        yield node
        user = _only_user(node)
        if user is None or user.target not in VIEWS:
            return
        node = user


def _undo(graph: GraphModule, value: Node, chain: list[Node]) -> Node:
    """Reshape a tensor from the last view's shape to the first one's."""
    for node, view in reversed(list(itertools.pairwise(chain))):
        if view.target is aten.permute.default:
            order = _arguments(view)[1]
            back = [order.index(k) for k in range(len(order))]
            value = graph.graph.call_function(aten.permute.default, (value, back))
        else:
            value = graph.graph.call_function(aten.reshape.default, (value, list(node.meta["val"].shape)))
    return value


def _arguments(node: Node) -> list[Any]:
    return list(node.args)


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _alike(a: Node, b: Node) -> bool:
    first, second = a.meta["val"], b.meta["val"]
    return bool(first.shape == second.shape and first.dtype == second.dtype)
