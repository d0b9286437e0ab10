"""Tests of the profile of a piece of work."""

import time

import pytest
import torch

from fedhead.bench import benchmark
from fedhead.bench.profiling import KINDS, profiled
from fedhead.core.system.errors import BadInput


def test_operators_by_kind_and_the_clock():
    a = torch.randn(300, 300)
    image, kernel = torch.randn(1, 3, 64, 64), torch.randn(16, 3, 3, 3)

    def work():
        for _ in range(3):
            a @ a
            torch.nn.functional.conv2d(image, kernel)
        time.sleep(0.05)

    found = profiled(work, torch.device("cpu"))
    assert found.busy is None
    assert found.seconds >= 0.05
    assert found.kinds["matrix products"] > 0
    assert found.kinds["convolutions"] > 0
    assert set(found.kinds) <= {*KINDS, "others"}


def test_the_profiler_prints_nothing_of_its_own(capfd):
    profiled(lambda: torch.ones(3) + 1, torch.device("cpu"))
    assert capfd.readouterr() == ("", "")


def test_the_round_of_a_workload():
    found = benchmark.profile_round("simplecnn", 2, "stack", "fp32", "cpu", steps=1)
    assert "GPU" not in "".join(found.lines())
    assert found.lines()[0].startswith("by the clock")


def test_unknown_names_are_refused():
    with pytest.raises(BadInput, match="did you mean 'simplecnn'"):
        benchmark.profile_round("simplecn", 2, "stack", "fp32", "cpu")
