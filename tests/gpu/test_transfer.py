"""Numbers are copied to a GPU without waiting for what it computes."""

from __future__ import annotations

import numpy as np
import torch

from fedhead.core.tree.transfer import to_device
from gpu import GPU

pytestmark = GPU


def test_the_host_does_not_wait_for_the_gpu() -> None:
    gpu = torch.device("cuda")
    to_device([1, 2], gpu)  # page-locked memory is allocated the first time
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    found = [to_device([1, 2], gpu), to_device(np.arange(3), gpu, torch.float64)]
    assert not torch.cuda.current_stream().query(), "the GPU is still busy"
    assert [t.tolist() for t in found] == [[1, 2], [0.0, 1.0, 2.0]]
