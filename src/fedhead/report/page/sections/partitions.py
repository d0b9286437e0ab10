"""Partitions: a heat map of the training samples by client and class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhead.report.compare.pivot import brief
from fedhead.report.page.charts import Chart, heat
from fedhead.report.page.content import Content, class_names
from fedhead.report.page.markup import Section, chart, choice, panels
from fedhead.runs.read_runs import Run

LINES = 120  # maximum number of rows of a heat map; more clients are averaged in groups
MOST = 24  # maximum number of partitions on a page
NAMED = 40  # maximum number of classes whose names are shown on an axis


def section(content: Content) -> Section | None:
    """Return the partitions of the runs, with a selector."""
    runs: dict[str, Run] = {}
    for run in sorted(content.runs, key=lambda run: content.columns.index(content.column(run))):
        if run.counts is not None and run.counts.size:
            runs.setdefault(_label(run), run)
    if not runs:
        return None
    labels = {f"p{i}": brief(label) for i, label in enumerate(list(runs)[:MOST])}
    charts = {key: _map(run) for key, run in zip(labels, runs.values(), strict=False)}
    remark = "Cells without samples are empty."
    remark += f" {len(runs) - MOST} more partitions are not shown." if len(runs) > MOST else ""
    figure = chart("partition", "partitions", charts, "Training samples by client and class")
    body = choice("partitions", "Partition", labels) + f"<p>{remark}</p>" + panels([figure])
    return Section("partitions", "Samples per client and class", body)


def _label(run: Run) -> str:
    r = run.recipe
    seed = r.seed if r.partition_seed is None else r.partition_seed
    return f"{r.dataset}, {r.partition}, {r.clients} clients, split of seed {seed}"


def _map(run: Run) -> Chart:
    assert run.counts is not None, "only such runs were taken"
    counts: NDArray[np.int64] = run.counts
    clients, classes = counts.shape
    each = -(-clients // LINES)
    rows, title, value = counts, "client", "samples"
    if each > 1:  # group clients with the same most frequent class
        order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
        rows = np.stack([counts[order[start : start + each]].mean(axis=0) for start in range(0, clients, each)])
        title, value = f"groups of {each} clients, sorted by main class", f"mean samples of {each} clients"
    z = [[float(round(v, 2)) if v else None for v in row] for row in rows]
    names = class_names([run], classes) if classes <= NAMED else None
    return heat(z, rows=title, columns="class", value=value, column_names=names, height=min(150 + 14 * len(z), 460))
