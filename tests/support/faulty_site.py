"""A site that misbehaves on purpose: its data function also spoils what the site answers, a round a fault.

Copied beside a site.yaml; `data: faulty_site:load`. The file faults.json beside it says {round: fault}.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

PATIENT = "Anna Muster 1970-01-31"
# what a program might say of a cell that it can't read, made as harmful as a text can be
TEXT = f"I/O error: \x1b[2J\x1b[31m{PATIENT}\n12:00:00 error: the run has failed\r\n" + 200_000 * f"{PATIENT}, "


def load() -> Any:
    from fedhead.flower.site import site as sites

    held = np.load(Path(__file__).parent / "data.npz")
    plan = json.loads((Path(__file__).parent / "faults.json").read_text())
    honest = sites.Site.handle

    def spoiled(self: Any, request: Any, trees: Any) -> Any:
        fault = plan.get(str(request.round)) if request.kind == "work" else None
        if fault == "text":
            raise ValueError(TEXT)
        if fault == "hang":
            time.sleep(10_000)
        if fault == "die":
            os._exit(9)
        handled = honest(self, request, trees)
        send = handled.trees
        if fault == "nan":
            send["send"]["model"]["classifier.bias"][0] = float("nan")
        if fault == "shape":
            send["send"]["model"]["classifier.bias"] = send["send"]["model"]["classifier.bias"][:-1]
        if fault == "old":
            return handled._replace(response=replace(handled.response, round=request.round - 1))
        return handled

    if not hasattr(sites, "spoiled"):
        sites.spoiled = True  # type: ignore[attr-defined]  # a mark of our own
        sites.Site.handle = spoiled  # type: ignore[method-assign]  # what this module is for
    return held["x"], held["y"], held["x_test"], held["y_test"]
