"""Tests of how long `fedhead reproduce` may take: --minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhead.cli import call


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
@pytest.mark.parametrize("minutes", ["inf", "1e308", "-1"])
def test_a_time_that_is_out_of_range_is_refused(
    minutes: str, dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["reproduce", "ccvr/table2", "--scale", "small", "--cells", "cifar10-0.1 fedavg", *dry]
    assert call([*line, "--minutes", minutes, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert "--minutes" in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
