"""Text of the form `name(arguments)`: what it may hold, and one line for what can't be read."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhead.algorithm.upload import UPLOADS
from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput
from fedhead.core.system.text import printable
from fedhead.data.partitions import client_test_sets, partition_registry
from fedhead.models import MODELS
from fedhead.recipes.components import named
from fedhead.recipes.recipe import Recipe

HINTS = {"share": float, "sizes": tuple[int, ...], "form": str}


@pytest.mark.parametrize(
    ("text", "name", "positional", "by_name"),
    [
        ("iid", "iid", (), {}),
        (" mine.py:deal ( ) ", "mine.py:deal", (), {}),
        ("deal(1, -2.5, 1e-3)", "deal", (1, -2.5, 0.001), {}),
        ("deal(true, False, null, None)", "deal", (True, False, None, None), {}),
        ("deal(low-rank, no)", "deal", ("low-rank", "no"), {}),
        ("deal('a, b (c)', x=\"it's\")", "deal", ("a, b (c)",), {"x": "it's"}),
        ("deal([1, [2, 3], []], x=(4,))", "deal", ([1, [2, 3], []],), {"x": [4]}),
        ("mlp(head = etf, hidden=[8, 8,])", "mlp", (), {"head": "etf", "hidden": [8, 8]}),
        ("mlp(head=a.py:Cos(0.2, at=[1, f(2)]), x=1)", "mlp", (), {"head": "a.py:Cos(0.2, at=[1, f(2)])", "x": 1}),
    ],
)  # fmt: skip
def test_what_can_be_written(text: str, name: str, positional: tuple[Any, ...], by_name: dict[str, Any]) -> None:
    call = read_call(text, "thing")
    assert (call.name, call.positional, dict(call.named)) == (name, positional, by_name)
    assert call.text == text.strip()


@pytest.mark.parametrize(
    "text",
    ["deal(", "deal)", "(1)", "deal(1))", "deal(1)(2)", "deal(1) x", "deal(,)", "deal(1 2)", "deal(x=)", "deal(=1)",
     "deal(x=1, 2)", "deal([1)", "deal('a)", "deal(1=2)", "deal([1]=2)", "deal(f(1)", "deal(f(1 2))",
     "deal(" + 9999 * "["],
)  # fmt: skip
def test_what_can_not_be_read(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_call(text, "thing")
    assert (
        str(caught.value)
        == f"thing {printable(repr(text), 200)} can't be read: write name or name(value, parameter=value)"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deal(1, [2], a, b)", "4 values are too many, deal takes share, sizes, form"),
        ("deal(1, share=2)", "share is given twice"),
        ("deal(share=1, share=2)", "share is given twice"),
        ("deal(few)", "share: 'few' is not a number"),
        ("deal([1])", r"share: \[1\] is not a number"),
        ("deal(1, sizes=[1.5])", r"sizes: \[1\.5\] is not a list in brackets, each a whole number"),
        ("deal(form=a)", r"share is missing, write deal\(share\)"),
    ],
)
def test_values_that_do_not_fit(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=rf"^thing .*: {said}$") as caught:
        read_call(text, "thing").arguments("thing", HINTS, ["share"])
    assert str(caught.value).startswith(f"thing {text}: ")


def test_values_without_a_name_are_never_for_parameters_that_need_one() -> None:
    call = read_call("net(3, etf)", "model")
    with pytest.raises(BadInput, match="2 values are too many"):
        call.arguments("model", {"width": int}, named_only={"head": str})
    given = read_call("net(3, head=etf)", "model").arguments("model", {"width": int}, named_only={"head": str})
    assert given == {"width": 3, "head": "etf"}


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()))
def test_values_are_read_as_python_writes_them(values: list[Any]) -> None:
    call = read_call(f"f({values}, x={values})", "thing")
    assert call.positional == (values,)
    assert call.named == {"x": values}


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda text: partition_registry.parse(text), "partition"),
        (lambda text: client_test_sets.parse(text), "client_test"),
        (lambda text: UPLOADS.resolve_call(text), "upload"),
        (lambda text: MODELS.resolve_call(text), "model"),
    ],
    ids=["partition", "client_test", "upload", "model"],
)
def test_every_kind_says_the_same_of_what_can_not_be_read(read: Any, kind: str) -> None:
    with pytest.raises(BadInput) as caught:
        read("matched(5")
    assert str(caught.value) == f"{kind} 'matched(5' can't be read: write name or name(value, parameter=value)"


def test_ranges_are_checked() -> None:
    with pytest.raises(BadInput, match=r"^thing deal\(-1\): share: -1 is out of range, it must be at least 0$"):
        read_call("deal(-1)", "thing").arguments("thing", {"share": Annotated[float, AtLeast(0)]})


def test_a_recipes_heads_are_found_wherever_they_are_written() -> None:
    recipe = Recipe(
        dataset="digits",
        model=("mlp( head = a.py:A(1) )", "mlp(hidden=[8], head=b.py:B)"),
        model_parameters={"head": "c.py:C"},
    )
    assert [name for registry, name in named(recipe) if registry.kind == "head"] == ["c.py:C", "a.py:A", "b.py:B"]
