"""Replies that a site can't have meant: each is named, and counts as missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import run
from small_sites import Change, changed, during, nan, same, without, world


def wrong_shape(header: dict[str, Any], trees: dict[str, Any]) -> None:
    trees["send"]["model"]["classifier.bias"] = torch.zeros(7)


def wrong_dtype(header: dict[str, Any], trees: dict[str, Any]) -> None:
    trees["send"]["model"]["classifier.bias"] = trees["send"]["model"]["classifier.bias"].double()


def missing_tensor(header: dict[str, Any], trees: dict[str, Any]) -> None:
    del trees["send"]["model"]["classifier.bias"]


def unexpected_tensor(header: dict[str, Any], trees: dict[str, Any]) -> None:
    trees["send"]["more"] = torch.zeros(1)


def nothing_sent(header: dict[str, Any], trees: dict[str, Any]) -> None:
    trees.clear()


def old_round(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["round"] -= 1


def another_experiment(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["experiment"] = "00" * 8


def another_site(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["site"] = "site-1"


def no_samples(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["samples"] = 0


def negative_samples(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["samples"] = -5


def another_version(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["fedhead"] = "0.0.1"


def an_unknown_entry(header: dict[str, Any], trees: dict[str, Any]) -> None:
    header["more"] = 1


SPOILED: dict[Change, str] = {
    nan: "not finite",
    wrong_shape: r"\(7,\)",
    wrong_dtype: "float64",
    missing_tensor: "missing tensor",
    unexpected_tensor: "unexpected tensor",
    nothing_sent: "not that of this site",
    old_round: "it answered round 1, the request was for round 2",
    another_experiment: "it answered",
    another_site: "not that of this site",
    no_samples: "reported 14 samples to train, 0 to validate and 4 to test on when it joined",
    negative_samples: "out of range",
    another_version: "runs fedhead 0.0.1",
    an_unknown_entry: "another version",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", SPOILED, ids=lambda change: change.__name__)
def test_a_spoiled_reply_is_a_missing_reply(change: Change, tmp_path: Path) -> None:
    here, said = world(tmp_path), []
    grid = here.grid()
    grid.faults[103] = during("work", 2, changed(change))
    transport = here.transport(grid, said)
    result = run(transport)
    history = result.rows
    assert list(history[1]["failed"]) == ["site-3"]
    assert [row["round"] for row in history if "failed" in row] == [2]
    assert re.search(SPOILED[change], history[1]["failed"]["site-3"])
    # the site's own state of that round is not used either: SCAFFOLD's control variates go back with it
    same(without(here, 3, 2), transport.server)
