"""Replies that are none, or lack what the server needs, are named before they fail somewhere inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from small import federation, network

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies, Reply
from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree, Weights


@dataclass(frozen=True)
class Silent(fh.Method):
    """A method that sends nothing."""

    def finish(self, w: Weights, client: Client) -> Reply:
        return Reply(send=Tree(), keep=Tree())


@dataclass(frozen=True)
class Forgetful(fh.Method):
    """A method that forgets to return."""

    def finish(self, w: Weights, client: Client) -> Any:
        return None


@dataclass(frozen=True)
class Bare(fh.Method):
    """A method that sends its weights as they are."""

    def finish(self, w: Weights, client: Client) -> Any:
        return Reply(send=w["classifier.bias"], keep=Tree())


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            Silent(),
            r"aggregate needs 'model', but client 0 sent nothing: let finish return Reply\(send=Tree\(model=…\)",
        ),
        (Forgetful(), r"Forgetful\.finish returned NoneType: return fh\.Reply\(send=fh\.Tree\(model=w\), keep="),
        (Bare(), r"Bare\.finish returned Reply\(send=Tensor, keep=Tree\): return fh\.Reply"),
    ],
)
def test_a_method_that_sends_nothing_usable_is_named(method: fh.Method, words: str, executor: str) -> None:
    with pytest.raises(BadInput, match=words):
        fh.run(federation(), network(), method, rounds=1, executor=executor)


def test_the_client_that_lacks_an_entry_is_named() -> None:
    replies = Replies([3, 5], [1.0, 1.0], [Tree(a=Tree(), b=Tree()), Tree(b=Tree())])
    with pytest.raises(BadInput, match="needs 'a', but client 5 sent 'b'"):
        replies.sum("a")
