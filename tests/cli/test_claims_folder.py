"""What killed processes of `--devices` leave in the temporary folder is removed by a later command, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedhead.cli import several_devices
from fedhead.cli.several_devices import on_each

PROCESS = """
import sys, time
from pathlib import Path
from fedhead.cli.claims_folder import claims_folder, mark_in_use
with mark_in_use(Path(sys.argv[1])) if sys.argv[1:] else claims_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


class Process:
    """The process of a device, which ends at once."""

    def __init__(self, line: list[str], stdout: int, env: dict[str, str]) -> None: ...

    def wait(self) -> int:
        return 0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(several_devices, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=subprocess.DEVNULL))
    return tmp_path


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses a folder of claims, its own or the one that is named."""
    with subprocess.Popen([sys.executable, "-c", PROCESS, *words], stdout=subprocess.PIPE, text=True) as made:
        try:
            yield made
        finally:
            made.kill()


def first_line(made: subprocess.Popen[str]) -> str:
    assert made.stdout is not None
    return made.stdout.readline().strip()


def age(folder: Path) -> None:
    """Let a folder be an hour old."""
    then = folder.stat().st_mtime - 3600
    os.utime(folder, (then, then))


def run_command() -> None:
    with on_each(["cpu"], None) as (folder, _):
        assert folder is not None
        assert folder.is_dir()
    assert not folder.exists()


def test_a_later_command_removes_what_killed_processes_left(temporary: Path) -> None:
    with process() as parent:
        folder = Path(first_line(parent))
        assert folder.parent == temporary
        (folder / "a-run").touch()
        age(folder)
        run_command()
        assert folder.exists(), "its process lives"
        with process(str(folder)) as child:
            first_line(child)
            parent.kill()
            assert parent.wait() == -signal.SIGKILL
            run_command()
            assert folder.exists(), "one of its processes lives"
    run_command()
    assert list(temporary.iterdir()) == []


def test_a_process_of_a_device_uses_the_folder(temporary: Path) -> None:
    folder = temporary / "fedhead-claims-a"
    folder.mkdir()
    with on_each([], folder):
        age(folder)
        run_command()
        assert folder.exists()
    run_command()
    assert not folder.exists()


def test_folders_that_may_be_anothers_are_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = temporary / "mine"
    target.mkdir()
    (temporary / "fedhead-claims-link").symlink_to(target)
    young, old, other = (temporary / name for name in ("fedhead-claims-new", "fedhead-claims-old", "fedhead-other"))
    for folder in (young, old, other):
        folder.mkdir()
    for folder in (target, old, other):
        age(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: old.stat().st_uid + 1)
        run_command()
    assert old.exists(), "it is another user's"
    run_command()
    assert sorted(path.name for path in temporary.iterdir()) == [
        "fedhead-claims-link",  # where it points to may be anything
        "fedhead-claims-new",  # its process may not have locked it yet
        "fedhead-other",
        "mine",
    ]
