"""Tests of reading shared data once."""

import threading
from pathlib import Path

import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.data.inputs.arrays import Samples
from fedhead.data.sources.dataset_cache import read, read_once


class Reader:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_outside_the_context_everything_is_read_anew():
    reader = Reader()
    read(("a", Path(), "train"), reader)
    read(("a", Path(), "train"), reader)
    assert reader.calls == 2


def test_threads_inside_the_context_share_what_the_first_has_read():
    reader = Reader()
    with read_once():
        with read_once():  # runs that train together, inside a table
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
        read(("b", Path(), "train"), reader)  # the other data set is let go
        read(("a", Path(), "train"), reader)
        assert reader.calls == 5
    read(("a", Path(), "train"), reader)
    assert reader.calls == 6


def test_what_can_not_be_read_is_tried_again():
    reader = Reader()

    def fails():
        raise BadInput("missing")

    with read_once():
        with pytest.raises(BadInput, match="missing"):
            read(("a", Path(), "train"), fails)
        read(("a", Path(), "train"), reader)
    assert reader.calls == 1
