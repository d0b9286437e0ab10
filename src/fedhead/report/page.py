"""The report: one self-contained HTML file that needs no network and is readable in light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedhead.core.treefile import atomic
from fedhead.report import plots, tables
from fedhead.report.runs import Run, empty_folders, load_runs
from fedhead.report.tables import Group, TableRow

_CSS = """
:root { color-scheme: light dark; --ink: #1a2230; --soft: #5b6675; --rule: #d9dee6; --paper: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b4; --rule: #333b47; --paper: #14181e; --card: #1b2129; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, figcaption { color: var(--soft); margin: .2rem 0 .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 12rem; }
td.best { font-weight: 700; }
figure { margin: 0; color: var(--ink); } svg { max-width: 100%; height: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.5rem; }
details { background: var(--card); border-radius: 6px; padding: .5rem .9rem; margin: .5rem 0; }
pre { overflow-x: auto; font-size: .85rem; margin: .6rem 0; } summary { cursor: pointer; }
"""


def write(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report about runs.

    Args:
        paths: Run folders, or folders that contain them.
        out: HTML file to write.

    Returns:
        The path of the file.
    """
    out = Path(out)
    html = page(load_runs(paths), empty_folders(paths))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as draft:
        draft.write_text(html, encoding="utf-8")
    return out


def page(runs: Sequence[Run], empty: Sequence[Path] = ()) -> str:
    """Return the report as HTML.

    Args:
        runs: What it is about.
        empty: Folders in which no run began, to be named.
    """
    groups = tables.group_by_seed(runs)
    table_rows = tables.table_rows(groups)
    recipes = [run.recipe for run in runs]
    title = " · ".join(sorted({r.dataset for r in recipes})) + " · " + ", ".join(sorted({r.partition for r in recipes}))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(runs)} runs, {len(groups)} settings. Accuracies in per cent, mean ± deviation over the seeds that "
        f"finished.</p>",
        "<h2>Results</h2>",
        _results(table_rows),
        _notes(tables.notes(groups, empty)),
        _settings(groups),
        "<h2>Learning curves</h2>",
        _curves(groups),
        _classes(table_rows, runs),
        _partitions(runs),
        "<h2>Runs</h2>",
        *(_details(run) for run in runs),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} – fedhead</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(head: Sequence[str], body: Sequence[Sequence[str]], best: set[tuple[int, int]] | None = None) -> str:
    cells = [
        "".join(
            f'<td class="best">{escape(cell)}</td>' if (i, j) in (best or set()) else f"<td>{escape(cell)}</td>"
            for j, cell in enumerate(row)
        )
        for i, row in enumerate(body)
    ]
    rows = "\n".join(f"<tr>{row}</tr>" for row in cells)
    top = "".join(f'<th scope="col">{escape(word)}</th>' for word in head)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _results(table_rows: Sequence[TableRow]) -> str:
    uncounted = any(row.uncounted for row in table_rows)
    head = [
        "method",
        "accuracy",
        "personal",
        "seeds",
        *(["not counted"] if uncounted else []),
        "traffic (MB)",
        "per client and round (kB)",
        "seconds",
    ]
    body = [
        [
            row.label,
            tables.mean_std(row.accuracy),
            tables.mean_std(row.personal),
            str(len(row.seeds)),
            *([row.uncounted] if uncounted else []),
            "" if row.megabytes is None else f"{row.megabytes:,.1f}",
            "" if row.client_kilobytes is None else f"{row.client_kilobytes:,.1f}",
            "" if row.seconds is None else f"{row.seconds:.1f}",
        ]
        for row in table_rows
    ]
    best = set()
    for column, values in ((1, [row.accuracy for row in table_rows]), (2, [row.personal for row in table_rows])):
        means = [sum(v) / len(v) if v else float("-inf") for v in values]
        if len(table_rows) > 1 and max(means) > float("-inf"):
            best.add((means.index(max(means)), column))
    return _table(head, body, best)


def _notes(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _settings(groups: Sequence[Group]) -> str:
    """Return a table of the settings that differ between groups and that their labels leave out."""
    if not tables.unlabeled_keys(groups):
        return ""
    keys = list(dict.fromkeys(k for g in groups for k in g.settings))
    body = [[g.label, *(str(g.settings.get(k, "")) for k in keys)] for g in groups]
    return "<h2>What differs</h2>\n" + _table(["method", *keys], body)


def _curves(groups: Sequence[Group]) -> str:
    found = [
        name
        for name in ("accuracy", "personal", "train_loss", "test_loss")
        if any(run.last(name) is not None for g in groups for run in [*g.runs, *g.unfinished])
    ]
    if not found:
        return "<p>No round has been evaluated yet.</p>"
    figures = "\n".join(f"<figure>{plots.inline_svg(plots.curves(groups, name))}</figure>" for name in found)
    return f'<div class="pair">{figures}</div>' if len(found) > 1 else figures


def _classes(table_rows: Sequence[TableRow], runs: Sequence[Run]) -> str:
    with_classes = [row for row in table_rows if row.per_class]
    if not with_classes:
        return ""
    means = [tables.class_means(row) for row in with_classes]
    if len({len(m) for m in means}) > 1 or len(means[0]) > 30:
        return ""  # different data sets, or too many classes for a table
    named = {run.folder.partition.class_names() for run in runs}
    names = named.pop() if len(named) == 1 else None
    head = ["method", *(names or (str(c) for c in range(len(means[0]))))]
    body = [
        [row.label, *("–" if v is None else f"{v:.1f}" for v in mean)]
        for row, mean in zip(with_classes, means, strict=True)
    ]
    return "<h2>Accuracy by class</h2>\n" + _table(head, body)


def _partitions(runs: Sequence[Run]) -> str:
    """Return one figure per partition, at most six."""
    figures: dict[str, str] = {}
    for run in runs:
        r = run.recipe
        label = f"{r.dataset}, {r.partition}, {r.clients} clients, seed {r.seed}"
        counts = run.folder.partition.counts() if label not in figures and len(figures) < 6 else None
        if counts is not None and counts.shape[0] <= 100:
            picture = plots.inline_svg(plots.bubbles(counts, run.folder.partition.class_names()))
            figures[label] = f"<figure>{picture}<figcaption>{escape(label)}</figcaption></figure>"
    inner = "\n".join(figures.values())
    return f'<h2>Samples per client and class</h2>\n<div class="pair">{inner}</div>' if figures else ""


def _details(run: Run) -> str:
    environment = run.folder.environment()
    details = [f"executor {environment.get('executor', '–')}", f"device {environment.get('device', '–')}"]
    details += [f"{name} {version}" for name, version in environment.get("versions", {}).items() if version]
    details += [f"commit {environment['commit']}"] if environment.get("commit") else []
    return (
        f"<details><summary>{escape(str(run.folder.path))} – {escape(run.state)}</summary>"
        f"<p>{escape(', '.join(details))}</p><pre>{escape(run.recipe.to_yaml())}</pre></details>"
    )
