"""Tests of what a table's command is asked for: each variant and each override has to concern something."""

from __future__ import annotations

import re

import pytest
from tiny_table import tiny

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.reproduce import plan


@pytest.mark.parametrize("text", [",", " , ,"])
def test_variants_without_any_name_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "ccvr/table2", "--dry-run", "--variants", text]) == 2
    said = capsys.readouterr()
    assert f"error: --variants {text!r}: there is no text between the commas" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["tukey", "tukey"], "paper/tiny: the variant tukey is given twice; give it once"),
        (["tukey", "strong"], "paper/tiny: the variant strong concerns none of the picked cells"),
    ],
)
def test_each_variant_has_to_concern_some_cell_once(names: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        tiny().varied(tiny().cells(pick=["mild fedavg"]), names)


@pytest.mark.parametrize(
    ("key", "pick", "said"),
    [
        ("stage.ccrv.epochs", ["mild"], "unknown stage of these 'ccrv': did you mean 'ccvr'? Known: ccvr"),
        ("stage.recalibrate", ["mild"], "unknown stage of these 'recalibrate'. Known: ccvr"),
        ("stage.recalibrate.lr", ["mild fedavg before"], "none of these has a stage"),
    ],
)
def test_each_override_has_to_concern_some_cell(key: str, pick: list[str], said: str) -> None:
    beside = {"stage.ccvr.samples": 50} if "before" not in pick[0] else {"lr": 0.1}
    with pytest.raises(BadInput, match=re.escape(f"{key}: concerns none of the picked cells of paper/tiny: {said}")):
        plan(tiny(), pick=pick, overrides={**beside, key: 2})
    cells, _ = plan(tiny(), pick=pick, overrides=beside)
    assert any(cell.overrides for cell in cells)
