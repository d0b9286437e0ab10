"""A device without bfloat16 says so in one sentence; torch's own warning has forty lines."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import fedhead as fh
from fedhead.bench import benchmark
from fedhead.bench.benchmark import Workload
from fedhead.cli import call
from fedhead.models import precision

SENTENCE = (
    "precision bf16: this CPU has no instructions for bfloat16, so torch emulates them and is many times slower than "
    "in fp32; use fp32, or a device that has them"
)
OF_TORCH = "mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul: …\nframe #0: c10::Error::Error"
BENCH = ["bench", "--workloads", "small", "--clients", "2", "--executors", "stack", "--steps", "1", "--device", "cpu"]
RUN = ["run", "digits", "rounds=1", "subset=40", "clients=2", "model.hidden=[2]", "--device", "cpu", "--precision"]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any CPU one that has no bfloat16."""
    monkeypatch.setattr(precision, "has_bf16", lambda where: False)
    monkeypatch.setattr(benchmark, "WORKLOADS", {"small": Workload("MLPs, FedAvg", ("mlp(hidden=[2])",), "fedavg")})


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("words", [[*BENCH, "--precisions"], RUN])
def test_a_command_says_it_once_and_torch_not_at_all(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert call([*words, "bf16"]) == 0
        warnings.warn(OF_TORCH, UserWarning, stacklevel=1)  # as on a CPU that emulates it
        warnings.warn("something else of torch", UserWarning, stacklevel=1)
    assert capsys.readouterr().err.count(f"warning: {SENTENCE}\n") == 1
    assert [str(one.message) for one in heard] == ["something else of torch"]


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
def test_fp32_needs_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--precisions", "fp32,tf32"]) == 0
    assert "bf16" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [RUN, [*BENCH, "--precisions"]])
@pytest.mark.usefixtures("emulated")
def test_a_cpu_has_no_tf32_and_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call([*words, "tf32"]) == 0
    assert capsys.readouterr().err.count("warning: precision tf32: only GPUs have it") == 1
    assert call([*words, "fp32"]) == 0
    assert "tf32" not in capsys.readouterr().err


@pytest.mark.usefixtures("emulated")
def test_features_say_it_too(caplog: pytest.LogCaptureFixture) -> None:
    federation = fh.Federation.load("digits", "iid", clients=2)
    fh.extract_features(federation, "mlp(hidden=[4])", device="cpu", precision="bf16")
    assert caplog.messages == [SENTENCE]


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_is_asked_for_its_own_instructions(
    supported: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or supported)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: "Tesla T4")
    with warnings.catch_warnings():
        precision.warn_if_emulated(torch.device("cuda"))
    assert [line.split(",")[0] for line in caplog.messages] == (
        [] if supported else ["precision bf16: the GPU Tesla T4 has no instructions for bfloat16"]
    )
