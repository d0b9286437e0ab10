"""A method or stage from outside that can't work is refused by name before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedhead as fh
from fedhead.core.components.registry import instance
from fedhead.core.system.errors import BadInput
from fedhead.methods import METHODS
from fedhead.stages import STAGES

HEADER = "from abc import abstractmethod\nfrom dataclasses import dataclass\nimport fedhead as fh\n"
WRONG = {
    "def Mine(): ...": "of type function, not a class: name a subclass of fedhead.Method",
    "Mine = fh.FedAvg()": "one of the class FedAvg, not a class",
    "class Mine: ...": "no method: let Mine inherit from fedhead.Method",
    "class Mine(fh.Stage): ...": "no method: let Mine inherit from fedhead.Method",
    "class Mine(fh.Method):\n    mu: float = 1.0": "the field 'mu': put @dataclass",
    "@dataclass(frozen=True)\nclass Mine(fh.Method):\n    mu: float": "'mu' of Mine has no default value",
    "class Mine(fh.Method):\n    def loss(self, w, batch): ...": r"Mine.loss takes \(self, w, batch\), it is "
    r"called with \(self, w, batch, client\)",
    "class Mine(fh.Method):\n    loss = 3": "Mine.loss is int, it must be a function",
    "class Mine(fh.Method):\n    def finish(self, w, client, more): ...": r"Mine.finish takes",
    "class Mine(fh.Method):\n    def __init__(self, mu=0.1): ...": "own __init__: declare .* put @dataclass",
    "class Mine(fh.Method):\n    def los(self, w, batch, client): ...": "Mine.los is no hook of fedhead.Method: "
    "did you mean 'loss'.* helper _los",
    "class Mine(fh.FedProx):\n    def agregate(self, s, r, t): ...": "Mine.agregate is no hook .*'aggregate'",
}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_method(tmp_path: Path, code: str) -> None:
    (tmp_path / "mine.py").write_text(HEADER + code)
    with pytest.raises(BadInput, match=WRONG[code]) as caught:
        METHODS.find("mine.py:Mine", [tmp_path])
    assert str(caught.value).startswith("mine.py:Mine")


def test_instances_are_checked_like_classes() -> None:
    class Mine(fh.Method):
        def los(self) -> None: ...

    with pytest.raises(BadInput, match=r"^Mine: Mine\.los is no hook of fedhead\.Method: did you mean 'loss'\?"):
        instance(METHODS, Mine(), fh.Method)


def test_helpers_may_have_names_of_their_own() -> None:
    class Mine(fh.Method):
        def losses(self) -> None: ...

        def _los(self) -> None: ...

    assert METHODS.resolve(Mine) is Mine


def test_a_wrong_stage(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        HEADER + "class Mine(fh.Method): ...\nclass Other(fh.Stage):\n    def prerequisite(self, x): ..."
    )
    with pytest.raises(BadInput, match=r"no stage: let Mine inherit from fedhead.Stage"):
        STAGES.find("mine.py:Mine", [tmp_path])
    with pytest.raises(BadInput, match=r"Other.prerequisite takes"):
        STAGES.find("mine.py:Other", [tmp_path])


def test_a_sound_class_keeps_its_own_name_unless_it_is_given_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        HEADER
        + "@dataclass(frozen=True)\nclass Mine(fh.FedProx):\n    nu: float = 1.0\n"
        + "    def loss(self, w, batch, who, *, extra=None): return super().loss(w, batch, who)\n"
        + "@fh.method('mine_named')\nclass Named(Mine): ...\n"
    )
    try:
        assert METHODS.find("mine.py:Mine", [tmp_path]).name == "Mine"
        assert METHODS.find("mine.py:Named", [tmp_path]).name == "mine_named"
        assert "mine_named" in METHODS
    finally:
        del METHODS["mine_named"]


def test_all_built_in_ones_pass_the_check() -> None:
    assert all(METHODS[name].name == name for name in METHODS)
    assert all(STAGES[name].name == name for name in STAGES)
