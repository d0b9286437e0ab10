"""The functional optimizers against `torch.optim`."""

from __future__ import annotations

import pytest
import torch

from fedhead.core.training.optimizers import SGD, Adam, AdamW, Optimizer, _match_strides, clone_for_in_place
from fedhead.core.tree.tree import Tree

CASES: list[tuple[Optimizer, type[torch.optim.Optimizer], dict[str, object]]] = [
    (SGD(0.1), torch.optim.SGD, {}),
    (SGD(0.1, 0.9), torch.optim.SGD, {"momentum": 0.9}),
    (SGD(0.1, 0.9, 0.01), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    (SGD(0.1, 0.9, 0.01, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (Adam(0.1), torch.optim.Adam, {}),
    (AdamW(0.1, weight_decay=0.3), torch.optim.AdamW, {"weight_decay": 0.3}),
    (Adam(0.1, (0.5, 0.99), 0.1, 0.01), torch.optim.Adam, {"betas": (0.5, 0.99), "eps": 0.1, "weight_decay": 0.01}),
]


def _loss(w: list[torch.Tensor]) -> torch.Tensor:
    return (w[0] @ w[0].T).sin().sum() + (w[1] * w[0].sum(0)).square().sum()


@pytest.mark.parametrize(("mine", "theirs", "options"), CASES)
@pytest.mark.parametrize("stacked", [False, True])
def test_five_steps(
    mine: Optimizer, theirs: type[torch.optim.Optimizer], options: dict[str, object], stacked: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator, dtype=torch.float64), torch.randn(3, generator=generator).double()]
    leaves = [t.clone().requires_grad_() for t in start]
    reference = theirs(leaves, lr=0.1, **options)  # type: ignore[call-arg]  # the base class takes no lr
    params = Tree(a=start[0], b=start[1])
    if stacked:
        params = params.map(lambda t: t.expand(2, *t.shape))
    state = torch.func.vmap(mine.init)(params) if stacked else mine.init(params)
    for step in range(5):
        lr = 0.1 * 0.9**step
        reference.param_groups[0]["lr"] = lr
        reference.zero_grad()
        _loss(leaves).backward()
        grads = Tree(a=leaves[0].grad, b=leaves[1].grad)
        grads = grads.map(lambda t: t.expand(2, *t.shape)) if stacked else grads
        reference.step()
        params, state = mine.step(params, grads, state, torch.tensor(lr, dtype=torch.float64))
        for found, expected in zip(params.values(), leaves, strict=True):
            torch.testing.assert_close(found[0] if stacked else found, expected.detach(), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("mine", [mine for mine, _, _ in CASES])
def test_a_step_in_place_is_the_pure_step_whatever_the_strides(mine: Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tree:
        return Tree(
            filter=torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64),
            bias=torch.randn(4, generator=generator, dtype=torch.float64),
        )

    def turned(tree: Tree) -> Tree:
        return tree.replace(filter=tree["filter"].contiguous(memory_format=torch.channels_last))

    start, lr = draw(), torch.tensor(0.1, dtype=torch.float64)
    fresh = mine.init(start)
    params, state = start, fresh
    given = start.clone(), fresh.clone()
    ours, its = clone_for_in_place(turned(start), state)  # the state keeps the strides of weights that were not turned
    for step in range(4):
        grads = draw()
        params, state = mine.step(params, grads, state, lr)
        mine.step_in_place(ours, turned(grads) if step % 2 else grads, its, lr)
        torch.testing.assert_close(ours, params, atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(its, state, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close((start, fresh), given, atol=0, rtol=0)


def test_without_momentum_there_is_nothing_to_keep() -> None:
    params = Tree(a=torch.ones(2))
    assert SGD(0.1).init(params) == {}
    assert SGD(0.1).step(params, params, Tree(), 0.1)[1] == {}


def test_gradients_that_differ_in_the_stride_of_one_channel_are_not_copied() -> None:
    """Depthwise filters have one channel, and torch gives their gradients another stride for it."""
    filters = torch.randn(4, 1, 3, 3).contiguous(memory_format=torch.channels_last)
    gradient = torch.empty_strided((4, 1, 3, 3), (9, 9, 3, 1)).copy_(torch.randn(4, 1, 3, 3))
    filters = torch.empty_strided((4, 1, 3, 3), (9, 1, 3, 1)).copy_(filters)
    (found,) = _match_strides(Tree(w=gradient), Tree(w=filters))
    assert found.stride() == filters.stride()
    assert found.data_ptr() == gradient.data_ptr()
    assert torch.equal(found, gradient)
    (other,) = _match_strides(Tree(w=torch.randn(2, 3, 4, 4)), Tree(w=torch.randn(2, 4, 4, 3).permute(0, 3, 1, 2)))
    assert other.stride() == (48, 1, 12, 3)
