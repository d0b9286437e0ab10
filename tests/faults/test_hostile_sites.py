"""A site that answers anything at all, on the grid inside this process: the round goes on with the others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_length import length
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from mutations import mutate, mutate_value
from simulations import make_world, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.methods import METHODS
from fedhead.testing.inprocess import Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SETTINGS = {"rounds": 2, "local": LocalTraining(epochs=1, batch_size=4)}
HOSTILE = 3


def spoiled(rng: random.Random) -> Fault:
    """Return a site that changes some of its responses: the texts, the values in them, the bytes, the records."""
    share = rng.choice((0.2, 0.4, 0.8))  # of the responses that it changes; with few of them it gets further

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | None:
        made = honest()
        if rng.random() > share:
            return made
        top: dict[str, Any] = dict(made.config_records["fedhead"])
        part = rng.choice(("header", "trees", "format", "bytes", "record", "silence"))
        if part in ("header", "trees"):
            text = top[part]
            changed = rng.random() < 0.5
            top[part] = (
                json.dumps(mutate_value(json.loads(text), rng))
                if changed
                else mutate(text.encode(), rng).decode("utf-8", "replace")
            )
        elif part == "format":
            top[part] = mutate(top[part].encode(), rng).decode("utf-8", "replace")
        elif part == "bytes":
            data = top["tensors"]
            top["tensors"] = mutate(data, rng) if rng.random() < 0.7 else str(data)
        elif part == "record":
            made[rng.choice(("more", "model", "é" * 500))] = rng.choice((ConfigRecord({"x": 1}), ArrayRecord()))
        else:
            return None
        made["fedhead"] = ConfigRecord(top)
        return made

    return fault


def carried_out(folder: Path, method: str, fault: Fault | None) -> tuple[FinishedRun, list[str]]:
    here = make_world(federation(), {"own": network("group")}, METHODS[method](), SETTINGS, folder)
    grid, said = here.grid(), list[str]()
    if fault is not None:
        grid.faults[100 + HOSTILE] = fault
    return run(here.transport(grid, said, join_seconds=0.05, round_seconds=0.3)), said


@pytest.mark.parametrize("part", range(4))
def test_a_site_that_answers_anything_harms_only_itself(part: int, tmp_path: Path) -> None:
    methods = ("fedavg", "scaffold", "fedproto")
    # without a hostile site; one of the small federation's clients has no samples and never takes part
    honest = {name: carried_out(tmp_path / name, name, None)[0].rows[0] for name in methods}
    tried, left_out = length(3, 25), 0
    for number in range(part * tried, (part + 1) * tried):
        rng = random.Random(number)
        name = rng.choice(methods)
        result, said = carried_out(tmp_path / f"{number}", name, spoiled(rng))
        others = honest[name]["participants"] - 1
        assert all(row["participants"] >= others for row in result.rows), number
        failed = {site for row in result.rows for site in row.get("failed", {})}
        assert failed <= {f"site-{HOSTILE}", *honest[name].get("failed", {})}, number
        assert all("\n" not in line and len(line) < 3_000 for line in said), number
        assert all(t.isfinite().all() for t in result.server.leaves().values() if t.is_floating_point()), number
        left_out += any(row["participants"] == others for row in result.rows)
    print(f"{tried} runs with a hostile site, which was left out of a round in {left_out}")
    assert left_out > tried // 3
