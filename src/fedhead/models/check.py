"""Why a module can't be trained functionally or vectorized, in words, and the mends that can be made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedhead.core import random
from fedhead.core.batch import Output
from fedhead.core.errors import BadInput
from fedhead.models.dropout import Dropout, drawing
from fedhead.models.split_model import Placeholder, SplitModel

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
_PLAIN_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_TRACKING_NORM = nn.modules.batchnorm._NormBase  # BatchNorm and InstanceNorm, which count their batches


class Finding(NamedTuple):
    """One reason why a model can't be used as it is."""

    where: str  # the dotted name of the submodule, or "model"
    problem: str
    remedy: str
    blocks: Literal["all", "stack", "nothing"]  # which executors can't run it; "nothing": a warning

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


# -- mending --------------------------------------------------------------------------------------------------------
def fix(model: M) -> M:
    """Repair, in place, what would keep a model from running alike on every executor.

    Dropout comes to draw by key. BatchNorm keeps running statistics, with a plain momentum, and loses its counter of
    batches, which is not part of a model's weights. Parameters come to have one precision, torch's default.
    """
    swaps: dict[nn.Module, Dropout] = {}  # a module that stands in two places is replaced by one
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, _PLAIN_DROPOUT):
                whole = not isinstance(child, nn.Dropout)
                setattr(module, name, swaps.setdefault(child, Dropout(child.p, channels=whole)))
        if isinstance(module, _TRACKING_NORM):
            _mend_norm(module)
    if any(t.is_floating_point() and t.dtype != torch.get_default_dtype() for t in _tensors(model)):
        model.to(torch.get_default_dtype())
    return model


def _mend_norm(module: nn.modules.batchnorm._NormBase) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.track_running_stats:
        # without running statistics an evaluation would depend on the batch that a sample stands in
        like = module.weight if module.affine else torch.empty(0)
        module.track_running_stats = True
        module.running_mean = torch.zeros(module.num_features, dtype=like.dtype, device=like.device)
        module.running_var = torch.ones(module.num_features, dtype=like.dtype, device=like.device)
    if module.momentum is None:
        module.momentum = 0.1  # a cumulative average needs the counter; torch's default momentum does not
    module.num_batches_tracked = None


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


# -- checking -------------------------------------------------------------------------------------------------------
def require(
    model: SplitModel, input_shape: Sequence[int], classes: int, executor: str = "loop", name: str = "the model"
) -> None:
    """Refuse a model that an executor can't run, with the first reason and its remedy."""
    for finding in check(model, input_shape, classes):
        if finding.blocks == "all" or (finding.blocks == "stack" and executor == "stack"):
            raise BadInput(f"{name} can't be used: {finding}")


def check(model: SplitModel, input_shape: Sequence[int], classes: int) -> list[Finding]:
    """Say why a model can't be used functionally or vectorized, and what would fix it; an empty list: all is well.

    The model is looked at, then tried: a batch of two forward and backward, by itself and vectorized over two clients.
    """
    found = list(_look(model, classes))
    if any(f.blocks == "all" for f in found):
        return found
    training = model.training
    try:
        with random.global_generator(0):
            return found + _try(model.train(), input_shape)
    finally:
        model.train(training)


def _look(model: SplitModel, classes: int) -> Iterator[Finding]:
    """What can be seen without running the model."""
    if model.classes != classes:
        yield Finding(
            "classifier",
            f"it gives {model.classes} classes, the data has {classes}",
            f"build it with {classes} outputs",
            "all",
        )
    for name, module in model.named_modules():
        if isinstance(module, _PLAIN_DROPOUT):
            yield Finding(name, "dropout that draws from the global generator", "call fix(model)", "stack")
        elif isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
            kind = type(module).__name__
            yield Finding(name, f"{kind} draws from the global generator", "use nn.Dropout instead", "stack")
        elif isinstance(module, _TRACKING_NORM) and module.num_batches_tracked is not None:
            yield Finding(name, "it counts its batches outside the model's weights", "call fix(model)", "stack")
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in _tensors(model) if t.is_floating_point()})
    if len(kinds) > 1:
        yield Finding("model", f"its weights have several precisions ({', '.join(kinds)})", "call fix(model)", "all")


class _Trial(NamedTuple):
    """All that a trial run needs, as named tensors."""

    params: dict[str, Tensor]
    stats: dict[str, Tensor]
    x: Tensor
    key: Tensor


def _try(model: SplitModel, input_shape: Sequence[int]) -> list[Finding]:
    """What shows only when the model runs, in training mode."""
    trial = _trial(model, input_shape)
    before = [t.clone() for t in _tensors(model)]
    first, failure = _attempt(lambda: _apply(model, trial))
    if first is None:
        problem = f"it does not take inputs of shape {tuple(input_shape)} ({failure})"
        return [Finding("model", problem, "name a model and data that fit", "all")]
    found = list(_odd_outputs(model, first)) + _odd_order(model, trial)
    if any(f.blocks == "all" for f in found):
        return found
    torch.rand(1)  # move the global generator on
    again = _apply(model, trial)
    if not torch.equal(first.logits, again.logits):
        remedy = "use the modules nn.Dropout or fedhead.models.dropout.Dropout, which draw by key"
        found.append(Finding("model", "two passes over the same batch differ: it draws by itself", remedy, "stack"))
    if any(not torch.equal(a, b) for a, b in zip(before, _tensors(model), strict=True)):
        remedy = "keep it in floating-point buffers, or leave it out"
        found.append(Finding("model", "it keeps state outside its weights between passes", remedy, "nothing"))

    def loss(params: dict[str, Tensor], stats: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        return _apply(model, _Trial(params, stats, x, key)).logits.square().mean()

    _, failure = _attempt(lambda: _gradients(loss, trial.params, *trial[1:]))
    if failure:
        return [*found, Finding("model", f"its gradient can't be taken ({failure})", "see the message", "all")]
    params, *others = (_twice(part) for part in trial)
    _, failure = _attempt(lambda: _gradients(vmap(loss), params, *others))
    if failure:
        remedy = "run it with executor=loop, or write that step with operations that vmap knows"
        found.append(Finding("model", f"it can't be vectorized over clients ({failure})", remedy, "stack"))
    return found


def _trial(model: SplitModel, input_shape: Sequence[int]) -> _Trial:
    params = {name: p.detach() for name, p in model.named_parameters()}
    stats = {name: b.detach() for name, b in model.named_buffers() if b.is_floating_point()}
    like = next(iter(params.values()))
    x = random.uniform(torch.tensor(random.key("check")), 2, *input_shape).to(like)
    return _Trial(params, stats, x, torch.tensor(random.key("check", "dropout"), device=like.device))


def _twice(part: Tensor | dict[str, Tensor]) -> Any:
    return {n: torch.stack([t, t]) for n, t in part.items()} if isinstance(part, dict) else torch.stack([part, part])


def _apply(model: SplitModel, trial: _Trial) -> Output:
    stats = {name: t.clone() for name, t in trial.stats.items()}  # BatchNorm writes into them
    with drawing(trial.key):
        out: Output = functional_call(model, {**trial.params, **stats}, (trial.x,))
    return out


def _gradients(loss: Callable[..., Tensor], params: Any, *others: Any) -> tuple[Tensor, ...]:
    leaves = {name: t.detach().requires_grad_() for name, t in params.items()}
    return torch.autograd.grad(loss(leaves, *others).sum(), list(leaves.values()), allow_unused=True)


def _attempt(step: Callable[[], T]) -> tuple[T | None, str]:
    """The step's result, or the first line of what it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the finding says what matters
            return step(), ""
    except Exception as error:  # the user's forward may raise anything
        lines = str(error).strip().splitlines()
        return None, lines[0].rstrip(".") if lines else type(error).__name__


def _odd_outputs(model: SplitModel, out: Output) -> Iterator[Finding]:
    """Features and logits must be one row a sample."""
    for where, value, width in (("extractor", out.h, None), ("projection", out.z, model.features)):
        shape = tuple(value.shape)
        if len(shape) != 2 or shape[0] != 2 or (width is not None and shape[1] != width):
            wanted = f"[2, {'features' if width is None else width}]"
            problem = f"a batch of 2 gives features of shape {list(shape)} instead of {wanted}"
            yield Finding(where, problem, "flatten them before the classifier", "all")
            return
    if tuple(out.logits.shape) != (2, model.classes):
        problem = f"a batch of 2 gives logits of shape {list(out.logits.shape)} instead of [2, {model.classes}]"
        yield Finding("classifier", problem, "it must give one number a class", "all")


def _odd_order(model: SplitModel, trial: _Trial) -> list[Finding]:
    """Where parts were taken out of a user's module, what comes after them must be what the parts get."""
    calls: list[tuple[Tensor, ...]] = []
    holes = [module for module in model.extractor.modules() if isinstance(module, Placeholder)]
    hooks = [hole.register_forward_hook(lambda _, entering, leaving: calls.append(entering)) for hole in holes]
    try:
        h = _apply(model, trial).h
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) == len(holes) and all(torch.equal(entering[0], h) for entering in calls):
        return []
    remedy = "name the module's last Linear layer (and a projection that feeds it directly)"
    return [Finding("classifier", "it is not what the module applies last, or not once", remedy, "all")]
