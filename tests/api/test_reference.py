"""Reference of recipe keys and components: complete, and its examples are valid."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from fedhead.algorithm.method import Method
from fedhead.api.listing import explain, list_components
from fedhead.api.reference import Entry, field_entries, recipe_keys
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.methods import METHODS
from fedhead.recipes.components import registries
from fedhead.recipes.recipe import KEYS, Recipe


def test_every_key_has_an_entry() -> None:
    assert [entry.name for entry in recipe_keys()] == list(KEYS)


@pytest.mark.parametrize("entry", recipe_keys(), ids=lambda entry: entry.name)
def test_every_key_has_a_meaning_and_an_example_that_changes_it(entry: Entry) -> None:
    assert entry.meaning
    assert entry.allowed
    assert entry.example.startswith(f"{entry.name}=")
    assert getattr(Recipe(dataset="digits").override([entry.example]), entry.name) != getattr(
        Recipe(dataset="digits"), entry.name
    )


listing = functools.cache(list_components)
COMPONENTS = [(kind, name) for kind, registry in registries().items() for name in registry]


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_every_component_is_listed_and_explained_with_its_parameters(kind: str, name: str) -> None:
    rows = [row for row in listing(kind) if row["name"].partition("(")[0] == name]
    assert rows
    assert all(row["description"] for row in rows)
    text = explain(name)
    assert "Named architecture" not in text
    assert f"{kind.removesuffix('s')} {rows[0]['name']}: " in text
    component = registries()[kind][name]
    if kind not in ("models", "heads", "executors") and (isinstance(component, type) or inspect.isfunction(component)):
        assert [entry.name for entry in field_entries(component) if not entry.meaning] == []
        for parameter in rows[0]["parameters"]:
            assert f"{parameter} = " in text


def test_explain_shows_keys_and_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("lr").splitlines()[1:] == [
        "  allowed: a number, above 0",
        "  default: 0.01",
        "  example: lr=0.1",
    ]
    assert "method.mu = 0.01 (a number, at least 0)" in explain("fedprox")
    assert explain("median").startswith("aggregator median: ")
    assert call(["explain", "rounds"]) == 0
    assert capsys.readouterr().out.startswith("rounds: number of rounds")


def test_explain_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="unknown key or component 'local_epoch': did you mean 'local_epochs'"):
        explain("local_epoch")
    with pytest.raises(BadInput, match=r"unknown key or component 'xyzzy'. See fedhead ls keys"):
        explain("xyzzy")


def test_a_component_without_a_source_file_is_explained() -> None:
    space: dict[str, Any] = {}
    text = "@dataclass(frozen=True)\nclass Typed(Method):\n    'Method of a session.'\n    mu: float = 0.5"
    exec(text, {"dataclass": dataclass, "Method": Method, "__name__": __name__}, space)
    METHODS.register("typed_in_a_session", space["Typed"])
    try:
        assert explain("typed_in_a_session") == (
            "method typed_in_a_session: Method of a session.\n\nParameters:\n  method.mu = 0.5 (a number)"
        )
    finally:
        del METHODS["typed_in_a_session"]
