"""Tests of how long `fedhead reproduce` may take: --minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhead.cli import call


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ("inf", "--minutes: inf is not finite; give the minutes in which runs can end"),
        ("nan", "--minutes: nan is not finite"),
        ("1e308", "--minutes: 1e+308 is out of range, it must be above 0"),
        ("0", "--minutes: 0.0 is out of range, it must be above 0"),
        ("-1", "--minutes"),
    ],
)
def test_a_time_in_which_nothing_would_run_is_refused(
    minutes: str, said: str, dry: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["reproduce", "ccvr/table2", "--scale", "small", "--cells", "cifar10-0.1 fedavg", *dry]
    assert call([*line, "--minutes", minutes, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
