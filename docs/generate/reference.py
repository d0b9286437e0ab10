"""The reference: one page per group of public names, rendered from their docstrings by mkdocstrings."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import listings

import fedhead
from fedhead.api.reference import recipe_keys
from fedhead.cli.app import COMMANDS

PUBLIC = Path(inspect.getfile(fedhead)).with_name("public.py")
# A name belongs to the first group whose prefix its module has.
GROUPS = {
    "running": ("Running and results", ("fedhead.api", "fedhead.runs.reopen", "fedhead.engine.rounds.rounds")),
    "data": ("Data", ("fedhead.data",)),
    "models": ("Models and heads", ("fedhead.models",)),
    "methods": ("Methods", ("fedhead.methods",)),
    "stages": ("Stages", ("fedhead.stages",)),
    "writing": (
        "Writing methods and stages",
        ("fedhead.algorithm", "fedhead.core.training.batch", "fedhead.core.tree.tree"),
    ),
    "statistics": ("Class statistics and privacy", ("fedhead.calibration", "fedhead.privacy")),
    "clients": (
        "Aggregators, samplers and clients",
        ("fedhead.aggregators", "fedhead.samplers", "fedhead.engine.policies"),
    ),
    "metrics": (
        "Metrics, callbacks and loggers",
        ("fedhead.metrics", "fedhead.engine", "fedhead.loggers", "fedhead.papers", "fedhead.runs", "fedhead.studies"),
    ),
    "executors": ("Executors", ("fedhead.executors",)),
    "tools": ("Optimizers, losses, ranges, errors and tests", ("fedhead.core", "fedhead.testing", "fedhead")),
}


def pages() -> dict[str, str]:
    """Return the text of every page by its address."""
    members: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name, module in origins().items():
        members[next(key for key, (_, prefixes) in GROUPS.items() if module.startswith(prefixes))].append(name)
    found = {f"reference/{key}.md": _page(GROUPS[key][0], names) for key, names in members.items()}
    rows = [
        f"| [{GROUPS[key][0]}]({key}.md) | {', '.join(f'[`{name}`][fedhead.{name}]' for name in sorted(names))} |"
        for key, names in members.items()
    ]
    found["reference/keys.md"] = _keys()
    found["reference/commands.md"] = _commands()
    found |= listings.pages()
    rows += [
        "| [Recipe keys](keys.md) | every key of a recipe |",
        "| [Commands](commands.md) | every command and option |",
        "| [Other components](components.md) | every partition, metric, model, sampler, … with its parameters |",
        "| [Files of a run folder](run_folder.md) | every file that a run writes |",
        "| [Methods](../methods/index.md), [stages](../stages/index.md) | each with its parameters |",
    ]
    intro = "Every name that `import fedhead as fh` offers. The modules below `fedhead` are not part of the interface."
    found["reference/index.md"] = "\n".join(["# Reference", "", intro, "", "| | |", "|---|---|", *rows, ""])
    return found


def _keys() -> str:
    intro = "Keys of a recipe's YAML file and of `key=value` on the command line; `fedhead explain KEY` prints one."
    lines = ["# Recipe keys", "", intro, "", "| key | default | meaning |", "|---|---|---|"]
    for entry in recipe_keys():
        meaning = f"{entry.meaning}<br>*Allowed:* {entry.allowed}<br>*Example:* `{entry.example}`"
        lines.append(f"| `{entry.name}` | `{entry.default}` | {meaning} |")
    nested = "`model.NAME`, `method.NAME` and `stage.STAGE.NAME` set a parameter of the model, the method or a stage."
    return "\n".join([*lines, "", nested, ""])


def _commands() -> str:
    lines = ["# Commands", "", "As `fedhead COMMAND --help` prints them.", ""]
    for name, command in sorted(COMMANDS.items()):
        lines += [f"## fedhead {name}", "", "```text", command.parser().format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def origins() -> dict[str, str]:
    """Return the module that each public name is defined in."""
    found: dict[str, str] = {}
    for node in ast.parse(PUBLIC.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            package = node.module in ("fedhead", "fedhead.core.training", "fedhead.calibration")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}" if package else node.module
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                assert isinstance(target, ast.Name)
                found[target.id] = _module(node.value, found)
    return {name: module for name, module in found.items() if name in fedhead.__all__}


def _module(value: ast.expr, found: dict[str, str]) -> str:
    """The module of the name that an assignment begins with."""
    while isinstance(value, ast.Attribute):
        value = value.value
    assert isinstance(value, ast.Name)
    return found[value.id]


def _page(title: str, names: list[str]) -> str:
    lines = [f"# {title}", ""]
    for name in sorted(names, key=lambda name: (name.isupper(), name.lower())):
        lines += [f"::: fedhead.{name}", "    options:", f"      heading: {name}", f"      toc_label: {name}", ""]
    return "\n".join(lines)
