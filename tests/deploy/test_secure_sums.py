"""Secure sums between real processes with TLS and registered keys."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from partial import Partial

import fedhead as fh
from fedhead.deploy import certificates
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import run_stage
from fedhead.flower.ledger import Ledger
from fedhead.recipes.experiment import prepare

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
SITES = ["north", "south", "west", "east"]


def test_a_secure_sum_over_tls_is_the_head_of_the_sites_that_take_part(tmp_path: Path) -> None:
    """East wants more sites in a sum than there are: it reveals nothing, and the sum of the others is exact."""
    # no class is so small at a site that the site's policy would leave it out
    given = ["subset=900", "partition=iid", "rounds=0", "stages=[ridge]", "uploads=[secure_sum]"]
    project = Project.init(tmp_path / "demo", "digits", SITES, given)
    certificates.write(project.certs, ["127.0.0.1"], SITES)
    with (project.path / "sites" / "east" / "site.yaml").open("a") as file:
        file.write("min_sum_sites: 9\n")
    begin = time.monotonic()
    LocalFederation(project, secure=True).run()
    print(f"a secure sum over TLS: {time.monotonic() - begin:.1f} s from start to result")
    row = json.loads((project.path / "run" / "result.json").read_text())["stages"]["ridge"]
    assert (row["participants"], list(row["failed"])) == (3, ["east"])

    simulation = Partial(*prepare(replace(project.server().recipe_of_run(), uploads=())), Compute(device="cpu"))
    simulation.absent = {3}
    expected = run_stage(simulation, fh.Ridge()).weights
    found = fh.load(project.path / "run").trained.stages["ridge"].weights
    assert expected is not None
    assert found is not None
    for name in ("classifier.weight", "classifier.bias"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-6)

    for site in SITES:
        entries = list(Ledger.find(project.path / "sites" / site).entries())
        sent = [entry["sent"]["send"]["tensors"] for entry in entries if "send" in entry.get("sent", {})]
        assert [list(tensors) for tensors in sent] == ([] if site == "east" else [["masked"]])
