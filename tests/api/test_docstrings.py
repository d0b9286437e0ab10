"""Documentation of the public names: each parameter by name, and the returned value."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fedhead as fh
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.upload import UPLOADS

# Their parameters are hyperparameters of a paper: each field has a comment with its symbol and equation.
COMPONENTS = {*fh.METHODS.values(), *fh.STAGES.values(), *UPLOADS.values()}
COMPONENTS |= {*fh.AGGREGATORS.values(), *fh.SAMPLERS.values(), *fh.PROTECTIONS.values()}
CALLABLES = sorted(
    name
    for name in fh.__all__
    if callable(getattr(fh, name)) and not isinstance(getattr(fh, name), fh.METHODS.__class__)
)
CLASSES = [name for name in CALLABLES if inspect.isclass(getattr(fh, name))]


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def undocumented(text: str, names: list[str]) -> list[str]:
    """The parameters that no section of arguments lists; sections may have titles."""
    sections = "".join(re.findall(r"^Args:.*\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE))
    listed = set(re.findall(r"^    \*{0,2}(\w+):", sections, re.MULTILINE))
    return [name for name in names if name not in listed]


def check(function: Callable[..., Any], label: str) -> None:
    text = inspect.getdoc(function) or ""
    names = parameters(function)
    assert not undocumented(text, names), f"{label} does not document {undocumented(text, names)}"
    if names and inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty):
        assert "\nReturns:\n" in text or "\nYields:\n" in text, f"{label} does not say what it returns"


def own_methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that a class or a base in this package introduces; an override keeps the meaning."""
    for word, found in inspect.getmembers(cls, lambda m: inspect.isfunction(m) or inspect.ismethod(m)):
        if not word.startswith("_") and found.__module__.startswith("fedhead."):
            first = next(base for base in reversed(cls.__mro__) if word in vars(base))
            if first.__module__.startswith("fedhead."):
                yield word, getattr(first, word)


def test_a_parameter_that_is_missing_is_found() -> None:
    text = "Do it.\n\nArgs:\n    a: One.\n    **rest: Others.\n\nReturns:\n    b: No argument."
    assert undocumented(text, ["a", "b", "rest"]) == ["b"]
    assert undocumented("Do it.", ["a"]) == ["a"]


@pytest.mark.parametrize("name", [n for n in CALLABLES if n not in CLASSES])
def test_functions_document_their_arguments_and_what_they_return(name: str) -> None:
    check(getattr(fh, name), name)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_document_their_parameters(name: str) -> None:
    cls = getattr(fh, name)
    if issubclass(cls, Exception | dict) and "__init__" not in vars(cls):
        return  # built as Python's own
    if cls in COMPONENTS:
        source = inspect.getsource(inspect.getmodule(cls))  # type: ignore[arg-type]  # a class has a module
        for field in dataclasses.fields(cls):
            documented = re.search(rf"^    {field.name}: .*  # .", source, re.MULTILINE)
            inherited = field.name == "method" or field.name not in inspect.get_annotations(cls)
            above = re.search(rf"^    # .*\n    {field.name}: ", source, re.MULTILINE)
            assert inherited or documented or above or not undocumented(inspect.getdoc(cls) or "", [field.name]), (
                f"{name}.{field.name} has no comment"
            )
        return
    texts = "\n\n".join(inspect.getdoc(base) or "" for base in cls.__mro__ if base.__module__.startswith("fedhead."))
    lacking = [word for word in parameters(cls) if f"\n    {word}: " not in texts and f"\n    **{word}: " not in texts]
    assert not lacking, f"{name} does not document {lacking}"


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_has_a_docstring(name: str) -> None:
    for word, found in inspect.getmembers(getattr(fh, name), inspect.isroutine):
        if not word.startswith("_") and str(getattr(found, "__module__", "")).startswith("fedhead."):
            assert (inspect.getdoc(found) or "").strip(), f"{name}.{word}"


@pytest.mark.parametrize("cls", [Algorithm, *(getattr(fh, n) for n in CLASSES)], ids=lambda cls: cls.__name__)
def test_methods_document_their_arguments_and_what_they_return(cls: type) -> None:
    if cls in COMPONENTS:
        return  # hooks are documented where they are introduced
    for word, function in own_methods(cls):
        check(function, f"{cls.__name__}.{word}")
