"""List of all runs: status, recipe, versions and seeds, and the command that repeats the run."""

from __future__ import annotations

import shlex
from html import escape

from fedhead.report.compare.pivot import brief
from fedhead.report.metric_names import metric_label
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, folded, identifier, table, words
from fedhead.report.page.sections import progress
from fedhead.report.table import Cell, Table, number
from fedhead.runs.read_runs import Run

FEW = 6  # maximum number of runs whose details are shown unfolded


def section(content: Content) -> Section | None:
    """Return a table of all runs, including unfinished and broken ones, with the details of each."""
    states = [progress.state_of(run)[0] if content.live else run.state for run in content.runs]
    metric = next(iter(content.metrics), "accuracy")
    body: list[list[Cell | str]] = []
    for run, state in zip(content.runs, states, strict=True):
        r = run.recipe
        body.append(
            [
                content.name(run.path),
                brief(r.method),
                brief(f"{r.dataset}, {r.partition}") + (f", without {run.left_out}" if run.left_out else ""),
                Cell(str(r.seed), r.seed),
                state,
                Cell(f"{len(run.rows)} / {r.rounds}", len(run.rows)),
                number(run.last(metric)),
                str(run.environment.get("versions", {}).get("fedhead") or "–"),
            ]
        )
    for path, why in content.broken.items():
        body.append([content.name(path), "–", "–", "–", f"broken: {why}", "–", "–", "–"])
    head = ["run", "method", "data", "seed", "state", "rounds", metric_label(metric), "fedhead"]
    listed = table("runs-table", Table(f"Folders in {content.parent}", head, body), wordy=["data", "state"])
    details = "".join(map(_details, content.runs, states))
    if len(content.runs) > FEW:
        details = folded("recipes", "Recipes, versions and the commands that repeat the runs", details)
    return Section("runs", "Runs", listed + details)


def _details(run: Run, state: str) -> str:
    env = run.environment
    facts = [f"executor {env.get('executor', '–')}", f"device {env.get('device_name') or env.get('device', '–')}"]
    facts += [f"precision {env['precision']}"] if env.get("precision") else []
    facts += [f"compiled from round {env['compiled_from']} on"] if env.get("compiled_from") else []
    facts += [f"{name} {version}" for name, version in env.get("versions", {}).items() if version]
    facts += [f"commit {env['commit']}"] if env.get("commit") else []
    path = str(run.path)
    if sites := env.get("sites"):
        tested = f" ({run.left_out} only tested)" if run.left_out else ""
        repeat = (
            f"<p>Deployed at the sites {words(', '.join(sites) + tested)}: repeat it with another 'out' in "
            "server.yaml.</p>"
        )
    elif env.get("objects"):
        given = ", ".join(map(str, env["objects"]))
        repeat = (
            f"<p>Begun in Python with objects that no recipe can hold ({words(given)}): repeat it with fedhead.run.</p>"
        )
    else:
        command = f"fedhead run {shlex.quote(path + '/config.yaml')} --out {shlex.quote(path + '-again')}"
        repeat = f'<p>Repeat it:</p><pre tabindex="0">{escape(command)}</pre>'
    return (
        f'<details id="{identifier("run", path)}"><summary>{words(path)} – {words(state, 300)}</summary>'
        f"<p>{words(', '.join(facts), 1000)}</p>{repeat}<p>Recipe, config.yaml:</p>"
        f'<pre tabindex="0">{escape(run.recipe.to_yaml())}</pre></details>'
    )
