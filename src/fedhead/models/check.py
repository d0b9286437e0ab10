"""Checks that a model can be trained functionally, by a trial batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedhead.core.system.errors import require
from fedhead.core.training import global_generators, random
from fedhead.core.training.batch import Output
from fedhead.core.tree.inputs import Inputs
from fedhead.models.dropout import KeyedDropout, dropout_key
from fedhead.models.repair import tensors_of
from fedhead.models.split_model import Placeholder, SplitModel


def require_runnable(
    model: SplitModel, input_shape: Any, classes: int, name: str = "the model", largest_token: Any = None
) -> None:
    """Check that a model can be trained.

    Args:
        model: The model.
        input_shape: Shape of one input, or a dictionary of shapes for named inputs.
        classes: Number of outputs that the data needs.
        name: Name of the model in error messages.
        largest_token: Largest token of the data, or a dictionary for named inputs; True for a mask, None for numbers.

    Raises:
        BadInput: If no executor can train it; the message names the problem and the fix.
    """
    training = model.training
    try:
        with global_generators.seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error states the problem
            problem = next(_problems(model.train(), input_shape, classes, largest_token), None)
    finally:
        model.train(training)
    require(problem is None, f"{name} can't be used: {problem}")


def _problems(model: SplitModel, shape: Any, classes: int, largest_token: Any) -> Iterator[str]:
    """Yield the reasons why a model can't be trained, each with a fix."""
    if model.classes != classes:
        outputs = f"it has {model.classes} outputs, the data needs {classes}"
        yield f"classifier: {outputs}; build it with {classes} outputs"
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            yield f"{name}: SyncBatchNorm mixes the batches of several processes; use nn.BatchNorm2d"
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in tensors_of(model) if t.is_floating_point()})
    if len(dtypes) > 1:
        yield f"model: its weights have several dtypes ({', '.join(dtypes)}); call fix(model)"
    x = _example(shape, largest_token, next(model.parameters()))
    try:
        out, calls = _apply(model, x)
    except Exception as error:  # the user's forward may raise any exception
        inputs = _describe(shape, largest_token)
        yield f"model: it does not take {inputs} ({_reason(error)}); name a model and data that fit"
        return
    yield from _wrong_outputs(model, out)
    if any(len(inputs) != 1 or not torch.equal(inputs[0], out.h) for inputs in calls):
        remedy = "name the module's last Linear layer (and a projection that feeds it directly)"
        yield f"classifier: the module does not apply it last, or not exactly once; {remedy}"
    try:
        torch.autograd.grad(
            out.logits.square().mean(), [p for p in model.parameters() if p.requires_grad], allow_unused=True
        )
    except Exception as error:
        yield f"model: its gradient can't be taken ({_reason(error)}); see the message"


def _example(shape: Any, largest: Any, like: Tensor, *name: str) -> Any:
    """Return two inputs: random numbers, the largest token (to test an embedding's size), or a full mask."""
    if isinstance(shape, dict):
        return {key: _example(part, (largest or {}).get(key), like, key) for key, part in shape.items()}
    x = random.uniform(torch.tensor(random.key("check", *name)), 2, *shape)
    if largest is None:
        return x.to(like)
    return torch.full_like(x, largest, dtype=torch.bool if largest is True else torch.int64).to(like.device)


def _describe(shape: Any, largest: Any) -> str:
    """Describe inputs for error messages."""
    if isinstance(shape, dict):
        return " and ".join(f"{name}: {_describe(part, (largest or {}).get(name))}" for name, part in shape.items())
    kind = "a mask" if largest is True else "inputs" if largest is None else f"tokens 0 … {largest}"
    return f"{kind} of shape {tuple(shape)}"


def _apply(model: SplitModel, x: Inputs) -> tuple[Output, list[list[Tensor]]]:
    """Return the outputs, and the inputs of each placeholder of a user's module."""
    calls: list[list[Tensor]] = []
    hooks = []
    for module in model.extractor.modules():
        if isinstance(module, Placeholder):
            inputs: list[Tensor] = []
            calls.append(inputs)
            hooks.append(module.register_forward_hook(lambda _, given, out, inputs=inputs: inputs.append(given[0])))
    buffers = {name: b.clone() for name, b in model.named_buffers()}  # BatchNorm writes into them
    key = torch.tensor(random.key("check", "dropout"), device=next(model.parameters()).device)
    try:
        with dropout_key(key), KeyedDropout():
            return functional_call(model, buffers, (x,)), calls
    finally:
        for hook in hooks:
            hook.remove()


def _reason(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _wrong_outputs(model: SplitModel, out: Output) -> Iterator[str]:
    """Yield problems of features or logits that don't have one row per sample."""
    for where, value, width in (("extractor", out.h, None), ("projection", out.z, model.features)):
        shape = tuple(value.shape)
        if len(shape) != 2 or shape[0] != 2 or (width is not None and shape[1] != width):
            wanted = f"[2, {'features' if width is None else width}]"
            problem = f"a batch of 2 gives features of shape {list(shape)} instead of {wanted}"
            yield f"{where}: {problem}; flatten them before the classifier"
    if tuple(out.logits.shape) != (2, model.classes):
        problem = f"a batch of 2 gives logits of shape {list(out.logits.shape)} instead of [2, {model.classes}]"
        yield f"classifier: {problem}; it must give one number per class"
