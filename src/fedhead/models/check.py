"""Checks that a model can be trained functionally and vectorized over clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import Output
from fedhead.core.tree.inputs import Inputs, map_inputs
from fedhead.models.dropout import KeyedDropout, dropout_key
from fedhead.models.repair import PLAIN_DROPOUT, TRACKING_NORM, tensors_of
from fedhead.models.split_model import Placeholder, SplitModel

T = TypeVar("T")


class Finding(NamedTuple):
    """A problem of a model and its remedy."""

    where: str  # the dotted name of the submodule, or "model"
    problem: str
    remedy: str
    blocks: Literal["all", "stack", "nothing"]  # which executors can't run it; "nothing": a warning

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


def require_runnable(
    model: SplitModel,
    input_shape: Any,
    classes: int,
    executor: str = "loop",
    name: str = "the model",
    largest_token: Any = None,
) -> None:
    """Raise an error if an executor can't run a model.

    Args:
        model: Model to check.
        input_shape: Shape of one input, without the batch axis; by name where inputs have names.
        classes: Number of classes of the data.
        executor: Name of the executor.
        name: How error messages refer to the model.
        largest_token: Largest token of the data, if its inputs are tokens; by name likewise.

    Raises:
        BadInput: With the first problem and its remedy.
    """
    for finding in check(model, input_shape, classes, largest_token):
        if finding.blocks == "all" or (finding.blocks == "stack" and executor == "stack"):
            raise BadInput(f"{name} can't be used: {finding}")


def check(model: SplitModel, input_shape: Any, classes: int, largest_token: Any = None) -> list[Finding]:
    """List the reasons why a model can't be trained functionally or vectorized, each with a remedy.

    The model is inspected, then tried: a batch of two samples forward and backward, alone and vectorized over two
    clients.

    Args:
        model: Model to check.
        input_shape: Shape of one input, without the batch axis; by name where inputs have names.
        classes: Number of classes of the data.
        largest_token: Largest token of the data, if its inputs are tokens; by name likewise.

    Returns:
        The findings; an empty list if nothing is wrong.
    """
    found = list(_inspect(model, classes))
    if any(f.blocks == "all" for f in found):
        return found
    training = model.training
    try:
        with random.global_generator(0):
            return found + _try_run(model.train(), input_shape, largest_token)
    finally:
        model.train(training)


def _inspect(model: SplitModel, classes: int) -> Iterator[Finding]:
    """Find problems without running the model."""
    if model.classes != classes:
        yield Finding(
            "classifier",
            f"it has {model.classes} outputs, the data needs {classes}",
            f"build it with {classes} outputs",
            "all",
        )
    for name, module in model.named_modules():
        if isinstance(module, PLAIN_DROPOUT):
            yield Finding(name, "dropout that draws from the global generator", "call fix(model)", "stack")
        elif isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
            kind = type(module).__name__
            yield Finding(name, f"{kind} draws from the global generator", "use nn.Dropout instead", "stack")
        elif isinstance(module, nn.SyncBatchNorm):
            yield Finding(name, "SyncBatchNorm mixes the batches of several processes", "use nn.BatchNorm2d", "all")
        elif isinstance(module, TRACKING_NORM) and module.num_batches_tracked is not None:
            yield Finding(name, "it counts its batches outside the model's weights", "call fix(model)", "stack")
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in tensors_of(model) if t.is_floating_point()})
    if len(dtypes) > 1:
        yield Finding("model", f"its weights have several dtypes ({', '.join(dtypes)})", "call fix(model)", "all")


class _Trial(NamedTuple):
    """The inputs of a trial run, as named tensors."""

    params: dict[str, Tensor]
    stats: dict[str, Tensor]
    x: Inputs
    key: Tensor


def _try_run(model: SplitModel, input_shape: Any, largest_token: Any) -> list[Finding]:
    """Find problems by running the model in training mode."""
    trial = _trial(model, input_shape, largest_token)
    before = [t.clone() for t in tensors_of(model)]
    first, failure = _attempt(lambda: _apply(model, trial))
    if first is None:
        problem = f"it does not take {_words(input_shape, largest_token)} ({failure})"
        return [Finding("model", problem, "name a model and data that fit", "all")]
    found = list(_wrong_outputs(model, first)) + _wrong_order(model, trial)
    if any(f.blocks == "all" for f in found):
        return found
    torch.rand(1)  # move the global generator on
    again = _apply(model, trial)
    if not torch.equal(first.logits, again.logits):
        remedy = "use nn.Dropout or F.dropout, which draw by key here"
        found.append(
            Finding("model", "two passes over the same batch differ: it draws random numbers itself", remedy, "stack")
        )
    if any(not torch.equal(a, b) for a, b in zip(before, tensors_of(model), strict=True)):
        remedy = "keep it in floating-point buffers, or leave it out"
        found.append(Finding("model", "it keeps state outside its weights between passes", remedy, "nothing"))

    def loss(params: dict[str, Tensor], stats: dict[str, Tensor], x: Inputs, key: Tensor) -> Tensor:
        return _apply(model, _Trial(params, stats, x, key)).logits.square().mean()

    _, failure = _attempt(lambda: _gradients(loss, trial.params, *trial[1:]))
    if failure:
        return [*found, Finding("model", f"its gradient can't be taken ({failure})", "see the message", "all")]
    params, *others = (_duplicate(part) for part in trial)
    _, failure = _attempt(lambda: _gradients(vmap(loss), params, *others))
    if failure:
        remedy = "run it with executor=loop, or write that step with operations that vmap knows"
        found.append(Finding("model", f"it can't be vectorized over clients ({failure})", remedy, "stack"))
    return found


def _trial(model: SplitModel, input_shape: Any, largest_token: Any) -> _Trial:
    params = {name: p.detach() for name, p in model.named_parameters()}
    stats = {name: b.detach() for name, b in model.named_buffers() if b.is_floating_point()}
    like = next(iter(params.values()))
    x = example(input_shape, largest_token, like)
    return _Trial(params, stats, x, torch.tensor(random.key("check", "dropout"), device=like.device))


def example(input_shape: Any, largest_token: Any, like: Tensor) -> Inputs:
    """Return two inputs of a shape: random numbers, the largest token, which an embedding may lack, or a full mask.

    Args:
        input_shape: Shape of one input, by name where inputs have names.
        largest_token: Largest token, True for a mask, None for numbers; by name likewise.
        like: Gives dtype and device.
    """
    if isinstance(input_shape, dict):
        tokens = largest_token or {}
        return {name: _example(shape, tokens.get(name), like, name) for name, shape in input_shape.items()}
    return _example(input_shape, largest_token, like)


def _example(shape: Sequence[int], largest: int | bool | None, like: Tensor, *name: str) -> Tensor:
    x = random.uniform(torch.tensor(random.key("check", *name)), 2, *shape)
    if largest is None:
        return x.to(like)
    return torch.full_like(x, largest, dtype=torch.bool if largest is True else torch.int64).to(like.device)


def _words(shape: Any, largest: Any) -> str:
    """Return a description of the inputs of a trial."""
    if isinstance(shape, dict):
        return " and ".join(f"{name}: {_words(own, (largest or {}).get(name))}" for name, own in shape.items())
    kind = "a mask" if largest is True else "inputs" if largest is None else f"tokens 0 … {largest}"
    return f"{kind} of shape {tuple(shape)}"


def _duplicate(part: Inputs) -> Any:
    return map_inputs(lambda t: torch.stack([t, t]), part)


def _apply(model: SplitModel, trial: _Trial) -> Output:
    stats = {name: t.clone() for name, t in trial.stats.items()}  # BatchNorm writes into them
    with dropout_key(trial.key), KeyedDropout():
        out: Output = functional_call(model, {**trial.params, **stats}, (trial.x,))
    return out


def _gradients(loss: Callable[..., Tensor], params: Any, *others: Any) -> tuple[Tensor, ...]:
    leaves = {name: t.detach().requires_grad_() for name, t in params.items()}
    return torch.autograd.grad(loss(leaves, *others).sum(), list(leaves.values()), allow_unused=True)


def _attempt(step: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of a step, or the first line of the error it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the finding states the problem
            return step(), ""
    except Exception as error:  # the user's forward may raise any exception
        lines = str(error).strip().splitlines()
        return None, lines[0].rstrip(".") if lines else type(error).__name__


def _wrong_outputs(model: SplitModel, out: Output) -> Iterator[Finding]:
    """Check that features and logits have one row per sample."""
    for where, value, width in (("extractor", out.h, None), ("projection", out.z, model.features)):
        shape = tuple(value.shape)
        if len(shape) != 2 or shape[0] != 2 or (width is not None and shape[1] != width):
            wanted = f"[2, {'features' if width is None else width}]"
            problem = f"a batch of 2 gives features of shape {list(shape)} instead of {wanted}"
            yield Finding(where, problem, "flatten them before the classifier", "all")
            return
    if tuple(out.logits.shape) != (2, model.classes):
        problem = f"a batch of 2 gives logits of shape {list(out.logits.shape)} instead of [2, {model.classes}]"
        yield Finding("classifier", problem, "it must give one number per class", "all")


def _wrong_order(model: SplitModel, trial: _Trial) -> list[Finding]:
    """Check that the parts taken out of a user's module were what it applies last."""
    calls: list[tuple[Tensor, ...]] = []
    placeholders = [module for module in model.extractor.modules() if isinstance(module, Placeholder)]
    hooks = [
        placeholder.register_forward_hook(lambda _, inputs, output: calls.append(inputs))
        for placeholder in placeholders
    ]
    try:
        h = _apply(model, trial).h
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) == len(placeholders) and all(torch.equal(inputs[0], h) for inputs in calls):
        return []
    remedy = "name the module's last Linear layer (and a projection that feeds it directly)"
    return [Finding("classifier", "the module does not apply it last, or not exactly once", remedy, "all")]
