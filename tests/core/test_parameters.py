"""Parameters: one checker for types and ranges, whoever gives the value, by the name that they wrote."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedhead as fh
from fedhead.core.components.parameters import Checked, check, check_all, parameters
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below, Matches, Range
from fedhead.core.system.errors import BadInput
from fedhead.models import MODELS
from fedhead.recipes import experiment as build
from fedhead.recipes.component_kinds import component
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe

numbers = st.floats(allow_nan=False, allow_infinity=False)
ALGORITHMS = [("method", name, kind) for name, kind in fh.METHODS.items()]
ALGORITHMS += [("stage", name, kind) for name, kind in fh.STAGES.items()]


def ranges(hint: Any) -> list[Range]:
    """All ranges of a hint, wherever they stand in it."""
    found = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Range)]
    inner = typing.get_args(hint)[:1] if found else typing.get_args(hint)
    return found + [each for part in inner for each in ranges(part)]


def numeric(hint: Any) -> bool:
    """Return whether a type hint allows a number."""
    if typing.get_origin(hint) is Literal:
        return False
    return hint in (int, float) or any(numeric(part) for part in typing.get_args(hint))


def outside(one: Range) -> float:
    """A whole number just out of a range."""
    step = {AtLeast: -1, Above: 0, AtMost: 1, Below: 0}[type(one)]
    return one.bound + step  # type: ignore[attr-defined]  # the four of the line above have one


def declared() -> Iterator[tuple[str, str, type[Any], str, Any]]:
    for kind, name, cls in ALGORITHMS:
        for field, hint in parameters(cls).items():
            if numeric(hint):
                yield kind, name, cls, field, hint


@pytest.mark.parametrize(
    ("kind", "name", "cls", "field", "hint"), list(declared()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_number_of_a_method_or_stage_has_a_range_that_holds_everywhere(
    kind: str, name: str, cls: type[Any], field: str, hint: Any
) -> None:
    found = ranges(hint)
    assert found, f"{cls.__name__}.{field} declares no range"
    for one in found:
        bad = outside(one)
        with pytest.raises(BadInput) as python:
            cls(**{field: bad})
        assert str(python.value).startswith(f"{cls.__name__}: {field}: {bad} is out of range, it must be ")
        key = f"method.{field}" if kind == "method" else f"stage.{name}.{field}"
        keys = {"method": name} if kind == "method" else {"stages": [name]}
        with pytest.raises(BadInput) as recipe:
            build.algorithms(Recipe.from_flat({**keys, key: bad}))
        assert str(recipe.value) == f"{key}{str(python.value).removeprefix(f'{cls.__name__}: {field}')}"


@pytest.mark.parametrize(
    "target", [Recipe, *(entry.builder for entry in MODELS.values())], ids=lambda t: getattr(t, "__name__", str(t))
)
def test_every_number_of_recipes_and_models_has_a_range(target: Any) -> None:
    for name, hint in parameters(target).items():
        if numeric(hint) and name != "shape":
            assert ranges(hint), f"{name} declares no range"


def test_a_models_parameters_are_named_as_the_caller_wrote_them() -> None:
    with pytest.raises(BadInput, match=r"^model mlp: hidden: 0 is out of range, it must be at least 1$"):
        fh.build("mlp", (4,), 2, hidden=[3, 0])
    with pytest.raises(BadInput, match=r"^model\.hidden: 0 is out of range, it must be at least 1$"):
        build_experiment(Recipe(dataset="digits", model_parameters={"hidden": [3, 0]}))


@given(low=numbers, value=numbers)
def test_ranges_hold_what_they_say(low: float, value: float) -> None:
    assert (value in AtLeast(low)) == (value >= low) == (value not in Below(low))
    assert (value in AtMost(low)) == (value <= low) == (value not in Above(low))


def test_several_ranges_hold_together_and_are_said_together() -> None:
    hint = Annotated[float, Above(0), AtMost(1)]
    assert check("p", 1, hint) == 1.0
    for bad in (0, 1.5):
        with pytest.raises(BadInput, match=f"^p: {bad} is out of range, it must be above 0 and at most 1$"):
            check("p", bad, hint)


@pytest.mark.parametrize(
    ("value", "hint", "said"),
    [
        ((0.5, 2), tuple[Annotated[float, Below(1)], ...], "2 is out of range, it must be below 1"),
        ([1], tuple[int, int], r"\[1\] is not a list of 2 in brackets"),
        ("a", Annotated[int, AtLeast(0)] | None, "'a' is not a whole number or null"),
        (-1, Annotated[int, AtLeast(0)] | None, "-1 is out of range, it must be at least 0"),
        (2, Annotated[float, Below(1)] | str, "2 is out of range"),
        (True, float, "True is not a number"),
        (math.inf, float, "inf is not finite"),
        (10**400, float, "0 … is not finite"),
        ([0.1, math.nan], list[float], "nan is not finite"),
        ("x y", Annotated[str, Matches(r"\w+", "one word")], "'x y' is out of range, it must be one word"),
        ({"a": "b"}, dict[str, float], "is not a mapping from names, each a number"),
        (3, dict[str, Any], "3 is not a mapping"),
        (3, Literal["a", "b"], "3 is not one of a, b"),
    ],
)
def test_misfits_are_said_in_one_line(value: Any, hint: Any, said: str) -> None:
    with pytest.raises(BadInput, match=f"^key: .*{said}") as caught:
        check("key", value, hint)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="unknown parameter of method fedprox 'nu': did you mean 'mu'"):
        check_all({"nu": 1}, parameters(fh.FedProx), "method fedprox", "method.")
    with pytest.raises(BadInput, match=r"^method\.mu: method fedavg takes no parameters"):
        check_all({"mu": 1}, {}, "method fedavg", "method.")


@dataclass(frozen=True)
class Penalty(Checked):
    """Penalty of a user's own, with checked parameters."""

    mu: Annotated[float, AtLeast(0)] = 0.01
    steps: tuple[int, ...] = ()


def test_values_are_brought_to_their_fields_types() -> None:
    made = Penalty(1, [1, 2])  # type: ignore[arg-type]  # as YAML gives it
    assert (made.mu, type(made.mu), made.steps) == (1.0, float, (1, 2))
    with pytest.raises(BadInput, match=r"^Penalty: mu: -2 is out of range"):
        dataclasses.replace(made, mu=-2)


def test_a_users_method_declares_its_ranges_in_the_same_way() -> None:
    @dataclass(frozen=True)
    class Mine(fh.Method):
        mu: Annotated[float, AtLeast(0)] = 0.01

    with pytest.raises(BadInput, match=r"^Mine: mu: -1 is out of range, it must be at least 0$"):
        Mine(mu=-1)


def test_an_attribute_that_is_no_parameter_is_answered_with_the_fix() -> None:
    class Untyped(fh.Method):
        mu = 0.1

    fh.method("untyped")(Untyped)
    try:
        with pytest.raises(
            BadInput, match=r"^Untyped: mu has no type, so it is no parameter: annotate it, mu: float = 0\.1$"
        ):
            component(fh.METHODS, "untyped", {"mu": 0.2})
    finally:
        del fh.METHODS["untyped"]


def test_hints_that_cannot_be_read_are_said() -> None:
    @dataclass(frozen=True)
    class Odd(Checked):
        mu: NotThere = 1  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadInput, match=r"^Odd: its type hints can't be read .*NotThere"):
        Odd()


def test_arrays_are_lists_of_numbers_and_never_one_of_several_words() -> None:
    hint: Any = Literal["balanced"] | tuple[float, ...] | None
    assert check("weights", np.array([1, 2]), hint) == (1.0, 2.0)
    assert check("weights", torch.tensor([1.0, 0.5]), hint) == (1.0, 0.5)
    for wrong in (np.ones((2, 2)), np.array(["a", "b"]), np.array(1.0)):
        with pytest.raises(BadInput, match=r"weights: .* is not one of balanced"):
            check("weights", wrong, hint)
