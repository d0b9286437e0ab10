"""Modules that the package and its command line load, and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedhead


def fresh(code: str) -> str:
    """Return the output of a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def stderr_of(code: str) -> str:
    """Return a new interpreter's standard error."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stderr


def test_help_and_mistakes_do_not_wait_for_torch_and_matplotlib() -> None:
    said = fresh(
        "import sys; from fedhead.cli import call; codes = [call(['--help']), call(['nosuch'])];"
        "print(codes, 'torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    assert said.endswith("[0, 2] False False")


def test_every_public_name_is_there_and_listed() -> None:
    for name in fedhead.__all__:
        assert getattr(fedhead, name) is not None
    assert set(fedhead.__all__) <= set(dir(fedhead))
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = fedhead.nosuch


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "from fedhead.algorithm.method import Method; import fedhead as f; "
        "print(callable(f.method), f.Method is Method)",
        "from fedhead.methods import moon; from fedhead import *; print(callable(method), Moon is moon.Moon)",
    ],
)
def test_names_are_the_same_whatever_was_imported_first(code: str) -> None:
    heavy = "; import sys, fedhead.runs.run; print({'matplotlib', 'scipy.stats', 'pandas'} & sys.modules.keys())"
    assert fresh(code + heavy) == "True True\nset()", "or a run loads what it does not need"


@pytest.mark.slow
def test_the_library_leaves_the_allocator_of_the_process_alone_and_the_command_line_tunes_its_own() -> None:
    watch = (
        "import sys; from types import SimpleNamespace as Fake; from fedhead.core.system import malloc; calls = []\n"
        "malloc.ctypes = Fake(CDLL=lambda name: Fake(mallopt=lambda what, size: calls.append(what) or 1))\n"
    )
    library = (
        "import fedhead as fh; fed = fh.Federation.load('digits', 'iid', clients=2)\n"
        "fh.run(fed, 'mlp', rounds=1, executor='loop'); print(len(calls), fh.tune_malloc(), calls)"
    )
    assert fresh(watch + library) == "0 True [-3, -1]"
    command = "import atexit; atexit.register(lambda: print(calls)); sys.argv = ['fedhead', '--version']\n"
    assert fresh(watch + command + "from fedhead.cli import main; main()") == f"{fedhead.__version__}\n[-3, -1]"


def test_the_installed_version_and_the_citation_are_the_packages() -> None:
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedhead.__version__}\n" in citation


def test_warnings_are_logged_once_and_the_command_line_prints_them_as_one_line() -> None:
    warn = "from fedhead.core.system.log import warn_once\n[warn_once('careful:\\n50 %') for _ in range(2)]\n"
    assert stderr_of(warn) == "careful:\n50 %\n"  # Python's own last resort
    assert stderr_of("import logging; logging.getLogger('fedhead').setLevel(logging.ERROR)\n" + warn) == ""
    command = "from fedhead.cli import call\nfrom fedhead.cli.app import command\n@command('Start')\n"
    command += "def doubt() -> None:\n    {}call(['doubt'])"
    assert stderr_of(command.format(warn.replace("\n[", "; ["))) == "warning: careful: 50 %\n"
