"""What the package and its command line load, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedhead


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_help_and_mistakes_do_not_wait_for_torch() -> None:
    said = fresh(
        "import sys; from fedhead.cli import call; codes = [call(['--help']), call(['nosuch'])];"
        "print(codes, 'torch' in sys.modules)"
    )
    assert said.endswith("[0, 2] False")


def test_every_public_name_is_there_and_listed() -> None:
    for name in fedhead.__all__:
        assert getattr(fedhead, name) is not None
    assert set(fedhead.__all__) <= set(dir(fedhead))
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = fedhead.nosuch


@pytest.mark.parametrize(
    "code",
    [
        "from fedhead.algorithm.base import Method; import fedhead as f; print(callable(f.method), f.Method is Method)",
        "from fedhead.methods import moon; from fedhead import *; print(callable(method), Moon is moon.Moon)",
    ],
)
def test_names_are_the_same_whatever_was_imported_first(code: str) -> None:
    assert fresh(code) == "True True"
