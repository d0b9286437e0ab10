"""The built wheel, installed into clean environments outside the repository, as a user meets it.

One environment has the newest versions that pip chooses, the other the lowest that pyproject.toml allows. torch is the
exception: both have the version of constraints.txt, since any other would bring gigabytes of GPU libraries along.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedhead

ROOT = Path(__file__).parents[2]
LOWEST = ("--resolution", "lowest-direct", "--requirements", str(ROOT / "pyproject.toml"))

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(1500)]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables that would let the repository's own code in."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def must(*command: str | Path, cwd: Path) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    must(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    [built] = folder.glob("fedhead-*.whl")
    return built


@pytest.fixture(scope="session")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds torch alone."""
    folder = tmp_path_factory.mktemp("torch") / "env"
    must(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    found = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found
    must(folder / "bin" / "python", "-m", "pip", "install", "--quiet", found[0], cwd=folder.parent)
    return folder


@pytest.fixture(params=["newest", "lowest"])
def environment(request: pytest.FixtureRequest, wheel: Path, with_torch: Path, tmp_path: Path) -> Path:
    """A clean environment with the wheel in it; its folder of commands."""
    folder = tmp_path / "env"
    shutil.copytree(with_torch, folder, symlinks=True)
    python = folder / "bin" / "python"
    if request.param == "newest":
        must(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    else:
        version = must(python, "-c", "import torch; print(torch.__version__)", cwd=tmp_path)
        (tmp_path / "torch.txt").write_text(f"torch=={version}", encoding="utf-8")
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
        must(*uv, *LOWEST, "--constraints", tmp_path / "torch.txt", cwd=tmp_path)
        must(*uv, "--no-deps", wheel, cwd=tmp_path)
    return folder / "bin"


def test_the_command_line_works(environment: Path, tmp_path: Path) -> None:
    command = environment / "fedhead"
    print(must(environment / "python", "-m", "pip", "list", cwd=tmp_path))
    assert must(command, "--version", cwd=tmp_path) == f"{fedhead.__version__}\n"
    for words in ([], ["run"], ["deploy", "init"]):
        assert "usage: fedhead" in must(command, *words, "--help", cwd=tmp_path)
    said = must(command, "demo", "--rounds", "2", "--seeds", "1", "--quiet", cwd=tmp_path)
    assert re.search(r"^fedavg \+ ccvr +\d\d\.\d\d$", said, flags=re.MULTILINE)
    assert re.search(r"^one round: ridge +\d\d\.\d\d$", said, flags=re.MULTILINE)
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
    for wrong in (["run", "digits", "--sieve"], ["run"], ["fly"], ["run", "digits", "roundz=2"]):
        done = run(command, *wrong, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"error: .+\n", done.stderr)
