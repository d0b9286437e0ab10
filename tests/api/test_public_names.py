"""The public names, `import fedhead as fh`: all that a file outside the package needs, each with its docstring."""

from __future__ import annotations

import inspect

import pytest

import fedhead as fh

NEEDED = {
    "ANALYSES", "Adam", "AnalysisOptions", "AnalysisReport", "Batch", "Client", "Executor", "Federation", "Job",
    "LocalTraining", "Loop", "Matches", "Method", "Optimizer", "Output", "PARTS", "Partition", "Phase", "Replies",
    "Reply", "SGD", "Samples", "Snapshot", "SplitModel", "Stack", "Stage", "StageResult", "Task", "Trained",
    "Transform", "Tree", "UPLOADS", "Upload", "Weights", "analysis", "class_sums", "dataset", "executor", "head",
    "losses", "make_optimizer", "method", "metric", "model", "partition", "random", "stage", "testing", "upload",
}  # fmt: skip


def test_all_that_a_file_outside_needs_is_there() -> None:
    assert set(fh.__all__) >= NEEDED


@pytest.mark.parametrize("name", sorted(set(fh.__all__) - {"PARTS"}))
def test_every_name_has_its_own_docstring(name: str) -> None:
    found = getattr(fh, name)
    documented = found if inspect.isclass(found) or inspect.isroutine(found) or inspect.ismodule(found) else type(found)
    text = inspect.getdoc(documented) or ""
    assert text.strip()
    assert not text.startswith(f"{name}(")  # what dataclasses and named tuples write by themselves


def test_every_public_function_and_method_of_a_hook_has_types() -> None:
    for cls in (fh.Method, fh.Stage, fh.Client, fh.Replies):
        for word, function in inspect.getmembers(cls, inspect.isfunction):
            if not word.startswith("_"):
                assert "return" in inspect.get_annotations(function), f"{cls.__name__}.{word}"
