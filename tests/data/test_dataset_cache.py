"""Tests of reading shared data once."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.arrays import Samples
from fedhead.data.sources import dataset_cache, sample_file
from fedhead.data.sources.dataset_cache import read


class Reader:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


@pytest.fixture(autouse=True)
def nothing_is_cached():
    dataset_cache.clear()
    yield
    dataset_cache.clear()


def test_threads_share_what_the_first_has_read():
    reader = Reader()
    threads = [threading.Thread(target=read, args=(("a", Path(), "train"), reader)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read(("a", Path(), "train"), reader)
    assert reader.calls == 1
    read(("a", Path(), "test"), reader)
    read(("a", Path("other"), "train"), reader)
    assert reader.calls == 3
    read(("b", Path(), "train"), reader)  # the other data set is forgotten
    read(("a", Path(), "train"), reader)
    assert reader.calls == 5


def test_what_can_not_be_read_is_tried_again():
    reader = Reader()

    def fails():
        raise BadInput("missing")

    with pytest.raises(BadInput, match="missing"):
        read(("a", Path(), "train"), fails)
    read(("a", Path(), "train"), reader)
    assert reader.calls == 1


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path, calls = tmp_path / "own.npz", []
    real = sample_file.read_npz
    monkeypatch.setattr(sample_file, "read_npz", lambda path: calls.append(path) or real(path))
    np.savez(path, x=np.zeros((6, 2)), y=[0, 1, 0, 1, 0, 1])
    first = Federation.load(path, clients=2)
    first.train.x.fill_(7.0)  # a federation holds its own copy
    assert (Federation.load(path, clients=3).train.x == 0).all()
    assert len(calls) == 1
    np.savez(path, x=np.ones((8, 2)), y=[0, 1, 0, 1, 0, 1, 0, 1])
    assert (Federation.load(path, clients=2).train.x == 1).all()
    assert len(calls) == 2
