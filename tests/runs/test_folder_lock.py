"""Locks on a network file system, where another machine may remove a lock's file at any moment."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedhead.core.system.errors import BadInput, machine_fault
from fedhead.recipes.recipe import Recipe
from fedhead.runs.folder_lock import creating, locked
from fedhead.runs.run_folder import RunFolder


def once_stale(function: Callable[..., Any], number: int = errno.ESTALE) -> Callable[..., Any]:
    """The function, but its first call fails as one on a file that another machine has removed."""
    calls: list[object] = []

    def wrapped(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(number, os.strerror(number))
        return function(*args)

    return wrapped


@pytest.mark.parametrize(("module", "name"), [(os, "fstat"), (fcntl, "flock")])
def test_a_lock_whose_file_was_removed_elsewhere_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, once_stale(getattr(module, name)))
    entered = []
    with locked(tmp_path / "lock"):
        entered.append((tmp_path / "lock").exists())
    assert entered == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("module", "name"), [(os, "fstat"), (fcntl, "flock")])
def test_a_folder_that_another_machine_has_just_created_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, once_stale(getattr(module, name)))
    with pytest.raises(BadInput, match="is in use") as error, creating(tmp_path, "config.yaml"):
        pass
    assert machine_fault(error.value) is None  # other runs are run


def test_other_errors_of_the_file_system_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fstat", once_stale(os.fstat, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path / "lock"):
        pass


def test_a_run_that_another_machine_has_just_extended_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, Recipe())
    monkeypatch.setattr(os, "fstat", once_stale(os.fstat))
    with pytest.raises(BadInput, match="is in use"), folder.locked():
        pass
