"""Cross-site matrix of a finished run: the global model and the sites' final models on every site's test samples."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.transport import Context
from fedhead.flower.server.messaging import Answer
from fedhead.flower.server.transport import FlowerTransport
from fedhead.runs.run_folder_schema import CROSS_SITE, GLOBAL_MODEL

Cell = dict[str, Any]


def matrix(transport: FlowerTransport, context: Context) -> tuple[list[Cell], dict[str, str]]:
    """Test every model at every site that has test samples.

    A site tests its own model without sending it. Models are tested only at sites of the same architecture.

    Args:
        transport: Transport with connected sites.
        context: Method or stage, final states and round.

    Returns:
        The cells, and the reasons of missing ones by model or by site.
    """
    clients, names = transport.clients, transport.spec.sites
    testing = [k for k in transport.present() if transport.nodes.tests(k)]
    cells: list[Cell] = []
    missing: dict[str, str] = {}

    def add(model: str, answers: Mapping[int, Answer], refused: Mapping[int, str]) -> None:
        for k, (response, _) in answers.items():
            numbers = {"accuracy": response.accuracy, "loss": response.loss, **response.metrics}
            cells.append({"model": model, "test": names[k], "samples": response.tests, **numbers})
        missing.update({f"model {model} at {names[k]}": why for k, why in refused.items()})

    shared = global_model(context.algorithm, context.server, clients.task)
    if shared is not None:
        same = [k for k in testing if clients.assign[k] == 0]
        add(GLOBAL_MODEL, *transport.test_model(context, same, "global", shared))
    models, refused = transport.delivered_models(context)
    missing |= {f"model {names[k]}": why for k, why in refused.items()}
    answers, failed = transport.test_model(context, testing)
    for k in transport.present():
        add(names[k], {j: answers[j] for j in answers if j == k}, {j: failed[j] for j in failed if j == k})
        if k in models:
            others = [j for j in testing if j != k and clients.assign[j] == clients.assign[k]]
            add(names[k], *transport.test_model(context, others, "site", models[k][1]["model"]))
    return cells, missing


def write(folder: Path, sites: list[str], cells: list[Cell], missing: Mapping[str, str]) -> None:
    """Write the matrix as JSON, and its cells as CSV, into a run folder."""
    columns = list(dict.fromkeys(name for cell in cells for name in cell))
    with atomic((folder / CROSS_SITE).with_suffix(".csv")) as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(cells)
    with atomic(folder / CROSS_SITE) as draft:
        draft.write_text(json.dumps({"sites": sites, "cells": cells, "missing": dict(missing)}, indent=2) + "\n")
