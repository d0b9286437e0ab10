"""Errors of the file of a study: each says what happened to it, in one line."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedhead as fh
from fedhead.core.system.errors import machine_fault
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import load
from fedhead.recipes.search_space import Dimension
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune.study import FILE, Study
from fedhead.studies.tune.trial_training import TrialTraining

pytest.importorskip("optuna")
from sqlalchemy import event
from sqlalchemy.engine import Engine


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    search = TrialTraining.make(load("digits"), [Dimension("lr", "log", (0.01, 0.1))], "loss", 0.15, Compute())
    made = Study(tmp_path, search, trials=1, budget=TimeBudget(), sampler="random", pruner="none")
    yield made
    made.close()


def engine(study: Study) -> Engine:
    found: Engine = study.storage.engine
    return found


def fill(study: Study) -> None:
    with study._storage():
        study._study.set_user_attr("filling", "x" * 100_000)


def test_a_full_disk(study: Study) -> None:
    event.listen(engine(study), "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=1"))
    with pytest.raises(OSError, match=r"Errno 28\] .*disk is full.*: '.*study.db'") as caught:
        fill(study)
    assert machine_fault(caught.value) is not None  # which the command line answers with exit code 3


def test_a_disk_that_does_not_take_what_is_written(study: Study) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((study.folder / FILE).stat().st_size, before[1]))
    try:
        with pytest.raises(OSError, match=r"Errno 5\] disk I/O error: '.*study.db'") as caught:
            fill(study)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "No space" not in str(caught.value)
    assert machine_fault(caught.value) is not None


def test_a_statement_that_holds_the_word_full_is_no_full_disk(study: Study) -> None:
    with engine(study).begin() as connection:
        connection.exec_driver_sql("DROP TABLE study_user_attributes")
    with (
        pytest.raises(fh.BadInput, match=r"can't be used as a study .*no such table: study_user_attributes"),
        study._storage(),
    ):
        study._study.set_user_attr("full", 1)
