"""The process that compiles in the background: steps reach it as they were traced, and it never holds anybody up."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedhead.executors.compiling.process import CompilerProcess, pack
from fedhead.executors.compiling.step import TensorForm, trace
from fedhead.executors.compiling.worker import unpack
from fedhead.executors.kernels import normalize
from fedhead.executors.kernels.fusion import fuse

TABLE = torch.tensor([1.0, float("inf"), 3.0])


def step(*flat: Tensor) -> None:
    """A step with a constant, and with numbers that depend on no argument."""
    total, x = flat
    total.add_(x * torch.arange(3) + TABLE.clamp(max=5.0))


def traced() -> tuple[torch.fx.GraphModule, list[TensorForm]]:
    arguments = [torch.ones(3), torch.ones(4)[1:]]
    return trace(step, arguments), [TensorForm.of(t) for t in arguments]


def submit(answer: str) -> tuple[CompilerProcess, Future[None]]:
    """Submit a step to a process that runs this Python code."""
    process = CompilerProcess([sys.executable, "-S", "-c", f"import sys, time; sys.stdin.buffer.read(); {answer}"])
    return process, process.submit(*traced())


def test_a_step_arrives_as_it_was_traced() -> None:
    graph, forms = traced()
    found, same_forms = unpack(pack(graph, forms))
    assert found.code == graph.code
    assert "arange" in found.code
    assert same_forms == forms
    total = torch.ones(3)
    found(total, torch.ones(3))
    assert total.tolist() == [2.0, 7.0, 6.0]


def test_operators_for_stacks_arrive_too_and_are_fused_alike() -> None:
    def normalized(*flat: Tensor) -> None:
        total, x, own = flat
        total.add_(normalize.stacked(x, None, own, own, own, own, None, 1e-5, 8, False).relu())

    arguments = [torch.ones(2, 4, 3, 5), torch.ones(2, 4, 3, 5), torch.ones(2, 5)]
    graph, forms = trace(normalized, arguments), [TensorForm.of(t) for t in arguments]
    found, _ = unpack(pack(graph, forms))
    assert found.code == graph.code
    plain = graph.code
    assert fuse(found).code == fuse(graph).code != plain


def test_an_argument_that_is_part_of_a_larger_tensor_keeps_its_form() -> None:
    form = TensorForm.of(torch.ones(4, 5)[1:, 2:4])
    assert form.offset == 7
    assert TensorForm.of(form.empty()) == form


@pytest.mark.parametrize(
    ("answer", "error"),
    [("print('{\"error\": null}')", None), ('print(\'{"error": "no"}\')', "no"), ("sys.exit(3)", None)],
    ids=["compiled", "the compiler failed", "the process failed"],
)
def test_a_compilation_ends_with_the_compilers_error(answer: str, error: str | None) -> None:
    made = submit(answer)[1]
    if error is None:
        made.result()
    else:
        with pytest.raises(RuntimeError, match=error):
            made.result()
    assert made.done()


def test_steps_are_compiled_one_after_another(tmp_path: Path) -> None:
    file = tmp_path / "log"
    code = f"f = open({str(file)!r}, 'a'); f.write('begin '); f.flush(); time.sleep(0.05); f.write('end '); f.close()"
    process, first = submit(code)
    second = process.submit(*traced())
    first.result()
    second.result()
    assert file.read_text() == "begin end begin end "


def test_nobody_waits_for_the_compiler_at_the_end() -> None:
    process, made = submit("time.sleep(60)")
    while not process._processes:
        time.sleep(0.01)
    process.stop()
    begin = time.monotonic()
    made.result()
    assert time.monotonic() - begin < 5


def test_a_process_that_is_started_ahead_compiles_the_first_step() -> None:
    process = CompilerProcess([sys.executable, "-S", "-c", "import sys; sys.stdin.read(); print('{\"error\": null}')"])
    process.start()
    process.start()
    assert len(process._processes) == 1
    process.submit(*traced()).result()
    assert not process._processes
