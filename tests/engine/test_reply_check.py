"""The reply_check: what is not what was asked for, or not finite, never reaches the server."""

from __future__ import annotations

import pytest
import torch

from fedhead.core.system.errors import Diverged
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.engine.policies.reply_check import Refused, all_finite, check_finite, check_form

ASKED = Tree(model=Tree(w=torch.zeros(2, 3), empty=torch.zeros(0)), count=torch.tensor([1, 2]))


def check(send: Tree, expected: Schema | None, client: int, round: int) -> None:
    check_form(send, expected, client, round)
    check_finite(send, f"client {client}, round {round}")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Tree(w=torch.zeros(2, 3)), "missing tensor 'model/empty'"),
        (Tree(w=torch.zeros(2, 3), empty=torch.zeros(0), more=torch.zeros(1)), "unexpected tensor 'model/more'"),
        (Tree(w=torch.zeros(3, 2), empty=torch.zeros(0)), r"'model/w' is \(3, 2\) torch.float32, expected \(2, 3\)"),
        (Tree(w=torch.zeros(2, 3).double(), empty=torch.zeros(0)), "'model/w' is .* torch.float64, expected"),
    ],
)
def test_other_names_shapes_and_types_are_refused(model: Tree, words: str) -> None:
    with pytest.raises(Refused, match=f"client 4, round 7: .*{words}"):
        check(ASKED.replace(model=model), schema(ASKED), client=4, round=7)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("expected", [None, schema(ASKED)])
def test_numbers_that_are_not_finite_are_refused_by_name(bad: float, expected: dict[str, object] | None) -> None:
    w = torch.zeros(2, 3)
    w[1, 2] = bad
    send = ASKED.replace(model=Tree(w=w, empty=torch.zeros(0)))
    with pytest.raises(Diverged, match="client 4, round 7: 'model/w' is not finite"):
        check(send, expected, client=4, round=7)  # type: ignore[arg-type]  # the parameter's type is read from the list


def test_large_numbers_empty_tensors_and_trees_pass() -> None:
    check(ASKED.replace(model=Tree(w=torch.full((2, 3), 3e38), empty=torch.zeros(0))), schema(ASKED), 0, 1)
    check(Tree(count=torch.tensor([1])), None, 0, 1)
    check(Tree(), schema(Tree()), 0, 1)


def test_parts_of_one_tensor_are_looked_at_as_a_whole_unless_the_rest_is_not_finite():
    whole = torch.zeros(3, 4)
    parts = [Tree(w=row, n=torch.tensor(3)) for row in whole.unbind()]
    assert all_finite(parts)
    whole[2, 1] = float("inf")
    assert not all_finite(parts)
    assert all_finite(parts[:2])  # the last row is somebody else's
    assert all_finite([])


def test_complex_numbers_count() -> None:
    good = torch.tensor([1 + 2j, 3 - 1j])
    assert all_finite([Tree(w=good)])
    assert not all_finite([Tree(w=torch.complex(torch.tensor([float("nan"), 1.0]), torch.zeros(2)))])
    assert not all_finite([Tree(w=torch.view_as_real(good / 0))])  # a view of another type
