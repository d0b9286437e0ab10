"""Unfinished runs: progress, remaining time, and activity of each client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedhead.report.compare.pivot import brief
from fedhead.report.page.charts import Chart, heat
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, chart, choice, notes, panels, table
from fedhead.report.table import Cell, Table, number
from fedhead.runs.read_runs import Run

RECENT = 10  # rounds used to estimate the remaining time
CLIENTS, ROUNDS = 200, 60  # maximum numbers of clients and rounds in the map
PATIENCE = 60.0  # seconds without a round after which a run with short rounds counts as stopped


def section(content: Content) -> Section | None:
    """Return the state of the runs that are not finished."""
    unfinished = [run for run in content.runs if not run.finished]
    if not unfinished or not content.live:
        return None
    body: list[list[Cell | str]] = []
    for run in unfinished:
        done, rounds = len(run.rows), run.recipe.rounds
        state, left = state_of(run)
        bar = f'{done} / {rounds} <progress max="{max(rounds, 1)}" value="{done}" aria-label="rounds done"></progress>'
        r = run.recipe
        body.append(
            [
                content.name(run.path),
                Cell("", done / max(rounds, 1), html=bar),
                Cell("–" if left is None else duration(left), left),
                *(number(run.last(name)) for name in ("accuracy", "personal", "train_loss")),
                number(_pace(run), ".2f"),
                state,
                brief(f"{r.method}, {r.dataset}, {r.partition}, seed {r.seed}"),
            ]
        )
    head = ["run", "rounds", "left", "accuracy", "personal", "training loss", "s per round", "state", "recipe"]
    listed = table("progress-table", Table("", head, body), wordy=["state", "recipe"])
    return Section("progress", "Progress", listed + _clients(content, unfinished) + notes(_troubles(unfinished)))


def state_of(run: Run) -> tuple[str, float | None]:
    """Return the state of a run and its estimated remaining seconds."""
    if run.finished or run.diverged is not None:
        return run.state, None
    last = max(_changed(run.path), default=0.0)
    pace = _pace(run)
    quiet = max(time.time() - last, 0.0)
    if quiet > max(PATIENCE, 5 * (pace or PATIENCE)):
        return f"no news for {duration(quiet)}: stopped, or in its stages", None
    return "running", None if pace is None else pace * (run.recipe.rounds - len(run.rows))


def _changed(folder: Path) -> Iterator[float]:
    """Yield the modification times of a folder's files; files may be removed concurrently."""
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                yield file.stat().st_mtime


def _pace(run: Run) -> float | None:
    recent = [row["seconds"] for row in run.rows[-RECENT:]]
    return statistics.median(recent) if recent else None


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(42), duration(150), duration(9000)
    ('42 s', '2 min 30 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _clients(content: Content, runs: list[Run]) -> str:
    """Return a map of the clients' training losses by round."""
    charts: dict[str, Chart] = {}
    for run in runs:
        rows = [row for row in run.rows[-ROUNDS:] if row.get("client_train_loss")]
        clients = sorted({k for row in rows for k in row["client_train_loss"]}, key=lambda k: (len(k), k))[:CLIENTS]
        if rows and clients:
            z = [[row["client_train_loss"].get(k) for row in rows] for k in clients]
            height = min(160 + 9 * len(clients), 620)
            charts[content.name(run.path)] = heat(
                z,
                rows="client",
                columns="round",
                value="training loss",
                row_names=clients,
                column_names=[str(row["round"]) for row in rows],
                height=height,
            )
    if not charts:
        return ""
    figure = chart("client-state", "client-state", charts, "Training loss of each client by round", "Clients")
    remark = "<p>Training loss by client and round; empty where a client took no part.</p>"
    return choice("client-state", "Run", list(charts)) + panels([figure]) + remark


def _troubles(runs: list[Run]) -> list[str]:
    """Return the clients that failed, were absent or were excluded in the last round of each run."""
    out = []
    for run in runs:
        for word in ("failed", "absent", "left_out"):
            clients = run.rows[-1].get(word) if run.rows else None
            if clients:
                names = ", ".join(f"{k}: {v}" for k, v in clients.items()) if isinstance(clients, dict) else clients
                out.append(f"{run.path}, round {run.rows[-1]['round']}, {word.replace('_', ' ')}: {names}")
    return out
