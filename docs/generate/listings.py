"""Reference pages of the other components, one table per kind, and of the files of a run folder."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from fedhead.api.listing import list_components
from fedhead.api.reference import field_entries
from fedhead.core.components.parameters import describe_type, parameters
from fedhead.core.components.registry import Registry
from fedhead.metrics.registry import OF_SAMPLES
from fedhead.papers.analyses.registry import ANALYSES
from fedhead.recipes.components import registries
from fedhead.runs.run_folder_schema import (
    CHECKPOINT,
    CONFIG,
    DIVERGED,
    ENVIRONMENT,
    INITIAL,
    PARTITION,
    RESULT,
    STAGE_STATES,
)
from fedhead.runs.run_folder_schema import (
    METRICS as ROWS,
)

# Guide page of each kind; methods and stages have their own reference pages.
GUIDES = {
    "partitions": "data.md",
    "datasets": "data_files.md",
    "models": "own_model.md",
    "heads": "own_model.md",
    "metrics": "metrics.md",
    "callbacks": "metrics.md",
    "loggers": "loggers.md",
    "samplers": "clients.md",
    "aggregators": "robustness.md",
    "uploads": "uploads.md",
    "protections": "privacy.md",
    "executors": "executors.md",
    "analyses": "ccvr.md",
}
INPUTS = (*OF_SAMPLES, "clients", "classes", "key")  # arguments that a recipe does not set
# Parameters of functions; those of classes are documented at their fields.
MEANINGS = {
    "average": "average over the classes, as in scikit-learn",
    "bins": "number of confidence bins",
    "blocks": "layers of each dense block",
    "channels": "channels of the convolutions",
    "doubled": "whether blocks of stride 2 double their output, as in FedETF's public code",
    "dropout": "dropout probability",
    "features": "number of features",
    "form": "details of CCVR's or of FedETF's network",
    "growth": "channels that each layer adds",
    "hidden": "widths of the hidden layers",
    "k": "number of highest scores",
    "kernel": "width of the convolutions",
    "norm": "normalization layers",
    "pretrained": "whether to load the pretrained weights",
    "scale": "first value of the learnable scale of the cosines",
    "stem": "first convolution; 7x7 has a max pooling after it",
    "strides": "strides of the convolution and the pooling of the 7x7 stem",
}
FILES = {
    CONFIG: "recipe of the run; `fedhead run config.yaml` repeats it",
    PARTITION: "indices of every client's training, test and validation samples",
    ROWS: "one JSON object per round: losses, accuracies, bytes, seconds ([entries](../metrics.md))",
    CHECKPOINT: "server state and client states after the last round; `--resume` continues from it",
    ENVIRONMENT: "schema of the folder, versions, machine, executor, digests of your own code and data",
    RESULT: "final values, also of each stage, with the confusion matrix; only a finished run has it",
    STAGE_STATES: "server state and client states after each stage",
    DIVERGED: "round and reason, if numbers were not finite any more",
    INITIAL: "first weights of models that were given as objects in Python",
}


def pages() -> dict[str, str]:
    """Return the text of every page by its address."""
    return {"reference/components.md": _components(), "reference/run_folder.md": _run_folder()}


def _components() -> str:
    lines = ["# Other components", "", "As `fedhead ls KIND` lists them; `fedhead explain NAME` prints one.", ""]
    kinds: dict[str, Registry[Any]] = {**registries(), "analyses": ANALYSES}
    for kind, guide in GUIDES.items():
        lines += [f"## {kind.capitalize()}", "", f"The guide is [on its own page](../{guide}).", ""]
        entries = [entry for entry in list_components(kind) if entry["from"] == "built in"]
        lines += [*_table(["name", "meaning"], [[f"`{e['name']}`", _meaning(e["description"])] for e in entries]), ""]
        if kind not in ("partitions", "datasets", "executors", "analyses"):
            found = [row for name in sorted(kinds[kind]) for row in parameter_rows(name, kinds[kind][name])]
            lines += [*_table(["parameter", "default", "allowed", "meaning"], found), ""] if found else []
    return "\n".join(lines)


def parameter_rows(name: str, component: Any) -> list[list[str]]:
    """Return a row per parameter that a recipe can set: name, default, allowed values, meaning."""
    component = getattr(component, "builder", component)  # of an architecture
    if dataclasses.is_dataclass(component):
        entries = field_entries(component)  # type: ignore[arg-type]  # a class or function, as registered
        return [[f"`{name}({e.name})`", f"`{e.default}`", _text(e.allowed), _text(e.meaning)] for e in entries]
    given = inspect.signature(component).parameters
    hints = {n: hint for n, hint in parameters(component).items() if n not in INPUTS}
    settable = {n: hint for n, hint in hints.items() if given[n].default is not inspect.Parameter.empty}
    return [
        [f"`{name}({n})`", f"`{_value(given[n].default)}`", _text(describe_type(hint)), MEANINGS.get(n, "")]
        for n, hint in settable.items()
    ]


def _run_folder() -> str:
    intro = "`fedhead run … --out FOLDER` writes these files, each atomically. Read them with `fh.load(FOLDER)`."
    rows = [[f"`{name}`", meaning] for name, meaning in FILES.items()]
    more = [
        "Loggers add `metrics.csv` or `tensorboard/`, and `fedhead analyse` adds `analysis/`.",
        "A folder of several seeds or of a sweep holds one run folder per run, and `table.csv`, `table.json` and",
        "`sweep.yaml`. The folder of a search is [on its own page](../tuning.md#the-study).",
    ]
    return "\n".join(["# Files of a run folder", "", intro, "", *_table(["file", "holds"], rows), "", *more, ""])


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _value(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _meaning(text: str) -> str:
    text = _text(text).removeprefix("Return the ").removeprefix("Build a ").rstrip(".")
    return text[:1].upper() + text[1:]


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
