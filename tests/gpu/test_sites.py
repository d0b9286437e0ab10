"""A site that computes on a GPU answers what one on the CPU answers, and stores it as plainly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.experiment.experiment import Experiment, Schedule
from fedhead.flower.site.site import Site
from fedhead.flower.site.site_data import share
from fedhead.flower.site.site_run import SiteRun
from fedhead.flower.wire.protocol import Request, RunSpec
from fedhead.methods import METHODS
from gpu import needs_cuda

SPEC = RunSpec("ab" * 8, {"seed": 0}, [f"site-{k}" for k in range(5)], 3, [1, 6, 6])


def responses(device: str, folder: Path) -> list[Tree]:
    """Two rounds of a stateful method at one site, both from the same server state."""
    method = METHODS["scaffold"]()

    def site_run(spec: RunSpec, number: int) -> SiteRun:
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))
        experiment = Experiment(method, (network("group"),), local, Schedule(rounds=2))
        return SiteRun(Clients(experiment, share(federation(), number), device, all_here=False))

    clients = site_run(SPEC, 3).clients
    server = method.init_server(clients.initial[0], clients.task).to("cpu")
    downlink = make_downlink(method, server, [3], clients.task_of)
    site, sent = Site("site-3", site_run, folder), []
    for number in (1, 2):
        request = Request("work", SPEC, 60.0, number, accepted=number - 1)
        handled = site.handle(request, {"broadcast": downlink.broadcast, "per_client": downlink.per_client[3]})
        assert handled.commit is not None
        handled.commit()
        sent.append(handled.trees["send"].to("cpu"))
    return sent


def test_a_site_answers_round_after_round(tmp_path: Path) -> None:
    first, second = responses("cpu", tmp_path)
    assert (first["model"] - second["model"]).sq() > 1e-9  # the control variates of the first round count in the second


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_site_answers_as_a_cpu_site(tmp_path: Path) -> None:
    for cpu, gpu in zip(responses("cpu", tmp_path / "cpu"), responses("cuda", tmp_path / "gpu"), strict=True):
        for name, t in cpu.leaves().items():
            torch.testing.assert_close(gpu.leaves()[name], t, atol=1e-4, rtol=1e-4)
