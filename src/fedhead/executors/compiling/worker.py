"""Worker process of the background compiler: `python -m fedhead.executors.compiling.worker PARENT`.

It reads a step (`process.pack`) from standard input and compiles it into the compiler's cache. It writes
`{"error": null}`, or the compiler's error, to standard output.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fedhead.calibration import sums
from fedhead.core.system.errors import first_line
from fedhead.core.system.process import exit_with_parent
from fedhead.executors.compiling.step import (
    TensorForm,
    compile_graph,
    start_compiler_workers,
    trace,
    use_torch_assembler,
)
from fedhead.executors.kernels import layers

OPERATORS = (layers, sums)  # modules whose operators a step may use


def main() -> None:
    """Compile the step on the standard input."""
    exit_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output goes to standard error
    warnings.simplefilter("ignore")
    start_compiler_workers()  # in parallel with reading the step
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    packed = sys.stdin.buffer.read()
    if packed:
        answers.write(json.dumps({"error": compile_packed(packed)}))
        answers.close()
    os._exit(0)  # the compiler's workers exit by themselves


def compile_packed(packed: bytes) -> str | None:
    """Compile a step, and return the compiler's error, if any."""
    graph, forms = unpack(packed)
    try:
        compile_graph(graph, forms)
    except Exception as error:  # the parent decides what to do
        return first_line(error)
    return None


def unpack(packed: bytes) -> tuple[torch.fx.GraphModule, list[TensorForm]]:
    """Deserialize a step of `process.pack` and apply its settings to this process."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    step = torch.load(io.BytesIO(packed), weights_only=False)
    forms = [TensorForm(*form) for form in step["forms"]]
    if forms[0].device.type == "cuda":
        torch.cuda.set_device(forms[0].device)
    torch.backends.cuda.matmul.allow_tf32 = step["settings"]["matmul_tf32"]
    torch.backends.cudnn.allow_tf32 = step["settings"]["cudnn_tf32"]
    torch.set_num_threads(step["settings"]["threads"])
    use_torch_assembler()
    modules = {name: importlib.import_module(module) for name, module in step["modules"].items()}
    names: dict[str, Any] = {**modules, **step["values"]}
    exec(step["source"], names)
    function = partial(names["forward"], SimpleNamespace(**step["attributes"]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        arguments = [form.empty() for form in forms]
    return trace(function, arguments), forms


if __name__ == "__main__":
    main()
