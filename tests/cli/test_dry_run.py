"""Tests of --dry-run: what the real command refuses is refused, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhead.cli import call

SWEEP = ["sweep", "digits", "method=[fedavg,fedprox]", "rounds=1", "clients=2", "subset=60"]
TABLE = ["reproduce", "ccvr/table1", "--scale", "small", "--cells", "clsprox", "rounds=1"]
BAD = [
    (["--seeds", "0"], "seeds"),
    (["--seeds", "-1"], "seeds"),
    (["--shard", "0/0"], "--shard '0/0': write which of how many"),
    (["--shard", "3/2"], "--shard '3/2': write which of how many"),
    (["--device", "tpu"], "unknown device 'tpu'"),
    (["--executor", "nonsense"], "unknown executor 'nonsense'"),
    (["--executor", "lanes", "--device", "cpu"], "executor lanes: its streams need a GPU"),
    (["--devices", "cpu,x"], "--devices 'cpu,x'"),
    (["--devices", "cpu", "--device", "cpu"], "leave --device out"),
    (["--devices", "99"], "--devices 99: there is no GPU 99"),
]
RUN_OPTIONS = ("--device", "--executor")


@pytest.mark.slow
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "real"])
@pytest.mark.parametrize(("words", "says"), BAD, ids=[" ".join(words) for words, _ in BAD])
@pytest.mark.parametrize("command", [SWEEP, TABLE], ids=["sweep", "reproduce"])
def test_bad_options_are_refused_alike(
    command: list[str],
    words: list[str],
    says: str,
    dry: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert call([*command, *words, *dry, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--splits", "-1"], "--splits: -1 is out of range, it must be at least 1"),
        (["--splits", "0"], "--splits: 0 is out of range, it must be at least 1"),
        (["stage.lda.shrinkage=0.1"], "concerns none of the picked cells"),
        (["lr=-1"], "lr: -1"),
        (["method.nosuch=1"], "nosuch"),
    ],
)
def test_a_table_checks_what_it_lists(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = TABLE[:-1] if words[0].startswith("stage") else TABLE
    assert call([*base, *words, "--dry-run"]) == 2
    assert says in capsys.readouterr().err


def test_a_sweep_checks_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = ["--out", str(tmp_path / "held")]
    assert call([*SWEEP, "lr=0.1", *held, "--minutes", "0"]) == 0
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "held").iterdir())
    assert call([*SWEEP, "lr=0.2", *held, "--dry-run"]) == 2
    assert "holds another sweep: lr was 0.1 and is now 0.2" in capsys.readouterr().err
    assert call([*SWEEP, "lr=0.1", *held, "--dry-run"]) == 0
    assert capsys.readouterr().out == "fedavg\nfedprox\n"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    assert call([*SWEEP, "--out", str(tmp_path / "other"), "--dry-run"]) == 2
    assert "is not empty and holds no sweep" in capsys.readouterr().err
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "held").iterdir())


@pytest.mark.parametrize(("words", "says"), [(words, says) for words, says in BAD if words[0] in RUN_OPTIONS])
def test_a_run_refuses_them_before_it_makes_its_folder(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call(["run", "digits", "rounds=1", "clients=2", "subset=60", "--quiet", *words, "--out", str(out)]) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()
