"""The script that measures what a GPU is to reach, on a few samples on the CPU."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = Namespace(device="cpu", tiny=True, data=None, model=None)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("targets")
    for name in [name for name in sys.modules if name.startswith("targets")]:
        del sys.modules[name]


@pytest.mark.long
@pytest.mark.parametrize("name", ["scaffold", "stages"])
def test_a_row_measures_positive_numbers(targets: Any, name: str) -> None:
    found = list(targets.ROWS[name][0](TINY))
    assert all(one.name.startswith(name) for one in found)
    assert any(one.target for one in found)
    assert all(one.value > 0 for one in found if one.unit == "client-steps/s")


def test_fedjax_is_measured_beside_fedhead(targets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import targets_peers

    def bench_rates(workload: str, clients: int, executors: list[str], precisions: list[str], _: Any) -> list[Any]:
        return [Namespace(precision=name, steps_per_s=rate) for name, rate in zip(precisions, (600, 900), strict=True)]

    library = Namespace(steps_per_s=lambda clients, steps, rounds, device: {"whole rounds": 20.0, "local steps": 30.0})
    monkeypatch.setattr(targets_peers, "require", lambda module, package: None)
    monkeypatch.setattr(targets_peers, "stand_in", lambda *modules: None)
    monkeypatch.setattr(targets_peers, "bench_rates", bench_rates)
    monkeypatch.setitem(sys.modules, "targets_fedjax", library)
    found = {(one.name, one.precision): one.value for one in targets.ROWS["fedjax_peer"][0](TINY)}
    assert found == {
        ("fedjax_peer: FedAvg, 2 clients, whole rounds", "fp32"): 20,
        ("fedjax_peer: FedAvg, 2 clients, local steps", "fp32"): 30,
        ("fedjax_peer: fedhead, 2 clients", "fp32"): 600,
        ("fedjax_peer: fedhead, 2 clients, against FedJAX", "fp32"): 20,
        ("fedjax_peer: fedhead, 2 clients", "bf16"): 900,
        ("fedjax_peer: fedhead, 2 clients, against FedJAX", "bf16"): 30,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those that other libraries give of each other
@pytest.mark.skipif(importlib.util.find_spec("fedjax") is None, reason="fedjax is not installed")
def test_fedjax_trains_simplecnn(targets: Any) -> None:
    with patch.dict(sys.modules):
        found = list(targets.ROWS["fedjax_peer"][0](TINY))
    assert [one.precision for one in found] == ["fp32", "fp32", "fp32", "fp32", "bf16", "bf16"]
    assert all(one.value > 0 for one in found)


def test_a_library_that_is_not_installed_is_named(targets: Any) -> None:
    from targets_peers import require, stand_in

    with pytest.raises(RuntimeError, match=r"no_such_library is not installed: pip install no-such==1\.0"):
        require("no_such_library", "no-such==1.0")
    with patch.dict(sys.modules):
        stand_in("no_such_library", "no_such_library.part", "json", "json.part")
        assert importlib.import_module("no_such_library.part").anything
        assert "json.part" not in sys.modules


def test_a_row_that_fails_does_not_stop_the_others(
    targets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, arguments: list[str], limit: float, env: Any, on_found: Callable[[Any], None]) -> str:
        assert limit <= 90 if name == "eager" else limit <= targets.ROWS[name][1]
        if name == "pfl":
            return "it broke"
        value = {"eager": 250.0, "stages": 3.0}[name]
        on_found({"name": name, "value": value, "unit": "s", "target": "", "precision": "fp32", "gpu": "none"})
        return ""

    out = tmp_path / "targets.csv"
    monkeypatch.setattr(targets, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["targets.py", "pfl", "stages", "--device", "cpu", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        targets.main()
    assert end.value.code == 1
    assert "pfl is not complete: it broke" in capsys.readouterr().err
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["name"], row["value"], row["eager_steps_per_s"]) for row in rows] == [
        ("eager", "250.0", "250.0"),
        ("stages", "3.0", "250.0"),
    ]


def test_a_machine_without_a_gpu_is_told_so_before_anything_is_measured(
    targets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(targets, "measured", lambda *_: pytest.fail("something was measured"))
    monkeypatch.setattr(sys, "argv", ["targets.py", "stages", "--out", str(tmp_path / "targets.csv")])
    with pytest.raises(SystemExit) as end:
        targets.main()
    assert end.value.code == 2
    assert "--device cuda: no GPU is visible to torch" in capsys.readouterr().err


SCRIPT = """#!/bin/sh
echo "no client has more than 50 samples in a round" >&2
echo "fedavg: round 1, loss 2.301" >&2
sleep 0.2
echo "fedavg: round 2, loss 2.300, accuracy 10.00 %" >&2
exit {code}
"""


def test_a_command_is_timed_by_the_lines_of_its_rounds(
    targets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from targets_commands import run

    program = tmp_path / "python"
    program.write_text(SCRIPT.format(code=0), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found = run(["digits"], TINY, "fp32")
    assert 0 < found.first < found.last <= found.whole
    assert found.busy is None
    program.write_text(SCRIPT.format(code=3), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"fedhead run digits failed:[\s\S]*round 2"):
        run(["digits"], TINY, "fp32")


def test_a_row_is_ended_at_its_limit(targets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'measured: {\"value\": 1}'\nexec sleep 30\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found: list[dict[str, float]] = []

    class Timer(threading.Timer):
        """A timer that waits for the row's first line, however long the shell takes to start."""

        def run(self) -> None:
            while not found and not self.finished.wait(0.01):
                pass
            super().run()

    monkeypatch.setattr(threading, "Timer", Timer)
    assert targets.measured("pfl", [], 0.3, {}, found.append) == "not done after 0 s"
    assert found == [{"value": 1}]
