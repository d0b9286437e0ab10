"""A run that is interrupted at any file operation ends as the uninterrupted one: the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_length import FULL, length
from file_faults import NEEDS_SPACE, Fault, disk_full, faulty_files, kill, no_memory

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.treefile import load_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import load
from fedhead.runs import checkpoint, environment
from fedhead.runs.folder_lock import LOCK
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, METRICS, STAGE_STATES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
WORDS = ["rounds=3", "local_epochs=1", "model.hidden=[6]", "clients=3", "subset=90", "client_test=0.2"]
WORDS += ["method=scaffold", "momentum=0", "stages=[ccvr]", "stage.ccvr.samples=5", "stage.ccvr.epochs=1"]
LOOP = Compute(executor="loop", device="cpu")
RECIPE = load("digits", WORDS)
NOWHERE = 10**9


def run(out: Path, *, resume: bool = True) -> None:
    execute(RECIPE, out, LOOP, resume=resume)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """An uninterrupted run, and the file operations that it consists of."""
    folder = tmp_path_factory.mktemp("whole")
    found = environment.facts(torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "facts", lambda device: found)  # asking git takes as long as a round
        patch.setattr(checkpoint, "SHARE", float("inf"))  # every round, however slow the disk is
        with faulty_files(kill, NOWHERE, folder) as operations:
            run(folder / "run")
        yield folder / "run", list(operations)


def assert_same(one: Path, other: Path) -> None:
    for file in (CHECKPOINT, STAGE_STATES):
        (a, said), (b, said_too) = load_tree(one / file), load_tree(other / file)
        assert said == said_too
        assert list(a.leaves()) == list(b.leaves())
        for name, tensor in a.leaves().items():
            assert torch.equal(tensor, b.leaves()[name]), f"{file}: {name}"
    rows = [[json.loads(line) for line in (folder / METRICS).read_text().splitlines()] for folder in (one, other)]
    assert [untimed(row) for row in rows[0]] == [untimed(row) for row in rows[1]]
    results = [RunFolder.open(folder).result() or {} for folder in (one, other)]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert [p.name for p in other.iterdir() if p.name.startswith(".")] == [LOCK]  # no drafts are left


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def in_child(work: Callable[[], object]) -> int:
    """Do something in a copy of this process, in which everything is loaded already; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads; this process has none that hold a lock
        child = os.fork()
    if child:
        return child
    code = 9
    try:
        work()
        code = 0
    except BadInput as error:
        code = 7 if "in use" in str(error) or "holds a" in str(error) else 8
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child and return its exit code, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def points(count: int, short: int) -> list[int]:
    """Return the numbers of operations at which something happens: a sample of them, or all."""
    return list(range(count)) if FULL else sorted(random.Random(0).sample(range(count), short))


def with_fault(out: Path, fault: Fault, at: int) -> None:
    with faulty_files(fault, at, out.parent):
        run(out)


def resume(out: Path) -> None:
    with_fault(out, kill, NOWHERE)


def test_killed_at_any_file_operation(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, operations = whole
    tried = 0
    for at in points(len(operations), 8):
        out = tmp_path / f"killed{at}" / "run"
        out.parent.mkdir()
        assert ended(in_child(lambda out=out, at=at: with_fault(out, kill, at))) == -signal.SIGKILL
        resume(out)
        assert_same(path, out)
        tried += 1
    print(f"killed at {tried} of {len(operations)} file operations")


def test_killed_again_while_it_resumes(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, operations = whole
    rng, tried = random.Random(1), 0
    for number in range(length(3, 40)):
        out = tmp_path / f"killed{number}" / "run"
        out.parent.mkdir()
        for _ in range(rng.choice((2, 3, 4))):
            at = rng.randrange(len(operations))
            code = ended(in_child(lambda out=out, at=at: with_fault(out, kill, at)))
            assert code in (0, -signal.SIGKILL)  # 0: there was less left to do
            tried += code != 0
        resume(out)
        assert_same(path, out)
    print(f"{tried} kills in {length(3, 40)} runs that were killed several times")


def test_killed_at_a_random_moment(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, _ = whole
    begin = time.monotonic()
    assert ended(in_child(lambda: run(tmp_path / "timed"))) == 0
    takes, rng, kills = time.monotonic() - begin, random.Random(2), 0
    for number in range(length(4, 60)):
        out = tmp_path / f"killed{number}"
        child = in_child(lambda out=out: run(out))
        time.sleep(rng.random() * takes)
        os.kill(child, signal.SIGKILL)
        kills += ended(child) == -signal.SIGKILL
        resume(out)
        assert_same(path, out)
    print(f"{kills} of {length(4, 60)} runs were killed at a random moment")
    assert kills


@pytest.mark.parametrize("fault", [disk_full, no_memory])
def test_a_full_disk_or_no_memory_at_any_file_operation(
    fault: Fault, whole: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, operations = whole
    words = ["run", "digits", *WORDS, "--executor", "loop", "--device", "cpu", "--quiet"]
    needing = [at for at, doing in enumerate(operations) if fault is no_memory or doing in NEEDS_SPACE]
    for number in points(len(needing), 5):
        out = tmp_path / f"full{number}" / "run"
        out.parent.mkdir()
        with faulty_files(fault, needing[number], out.parent):
            code = call([*words, "--out", str(out)])
        said = capsys.readouterr().err
        doing = operations[needing[number]]
        if (doing, code) == ("mkdir", 0):  # the lock makes the run folder again, which exists
            continue
        assert (code, said.count("\n"), said[:7]) == (3, 1, "error: "), f"{doing}, number {needing[number]}: {said}"
        assert call([*words, "--out", str(out), "--resume"]) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert_same(path, out)
    with capsys.disabled():
        print(f"\n{fault.__name__}: {len(points(len(needing), 5))} of {len(needing)} operations")


def test_two_processes_that_begin_one_run(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, _ = whole
    refused = 0
    for number in range(length(3, 40)):
        out = tmp_path / f"pair{number}"
        again, start = bool(number % 2), time.monotonic() + 0.05

        def begin(out: Path = out, again: bool = again, start: float = start) -> None:
            time.sleep(max(0.0, start - time.monotonic()))
            run(out, resume=again)

        codes = sorted(ended(child) for child in [in_child(begin), in_child(begin)])
        # one of them is refused, or comes when the other has finished and finds nothing to do
        assert codes in ([0, 7], [0, 0]) if again else codes == [0, 7], codes
        refused += codes == [0, 7]
        assert_same(path, out)
    print(f"{length(3, 40)} pairs, {refused} times one was refused")
    assert refused
