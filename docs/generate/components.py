"""One page per method and stage, from its class: docstring, parameters, hooks, what crosses the wire, an example."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import fedhead as fh
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import METHODS, Method
from fedhead.algorithm.stage import STAGES, Stage
from fedhead.api.privacy import messages
from fedhead.api.reference import field_entries
from fedhead.core.training.objectives import NAMES as OBJECTIVES

# Beside `fedhead run digits method=NAME`: what a method or stage can't do without.
NEEDS = {
    "ktpfl": ["public=digits", "client_test=0.2"],
    "fedproto": ["client_test=0.2"],
    "local": ["client_test=0.2"],
    "finetune": ["client_test=0.2"],
    "finetune_ccvr": ["client_test=0.2"],
    "finetune_etf": ["method=fedetf", "client_test=0.2"],
    "personal_lda": ["client_test=0.2"],
    "personal_ridge": ["client_test=0.2"],
}
MODEL = "mlp(hidden=[64])"
PARAGRAPH = "\n\n"
HOOKS = {word for base in (Algorithm, Method, Stage) for word, value in vars(base).items() if inspect.isfunction(value)}
HOOKS -= {"check", "check_reply", "check_head", "check_counts", "digest", "find_inconsistent_replies", "add", "after"}


def pages() -> dict[str, str]:
    """Return the text of every page by its address."""
    kinds: list[tuple[str, Mapping[str, type[Algorithm]]]] = [("methods", METHODS), ("stages", STAGES)]
    found = {}
    for folder, registry in kinds:
        builtin = {
            name: registry[name] for name in sorted(registry) if registry[name].__module__.startswith("fedhead.")
        }
        found[f"{folder}/index.md"] = _overview(folder, builtin)
        for name, cls in builtin.items():
            found[f"{folder}/{name}.md"] = _page(folder, name, cls)
    return found


def example(folder: str, name: str) -> list[str]:
    """Return the arguments of `fedhead run` in a component's example."""
    needs = NEEDS.get(name, [])
    if folder == "methods":
        return ["digits", f"method={name}", "rounds=5", *needs]
    return ["digits", "rounds=5", *needs, f"stages=[{name}]"]


def _overview(folder: str, classes: Mapping[str, type[Algorithm]]) -> str:
    title = {"methods": "Methods", "stages": "Stages after training"}[folder]
    rows = [f"| [`{name}`]({name}.md) | {_first_line(cls)} |" for name, cls in classes.items()]
    more = {
        "methods": "Which one to take is on [its own page](../choosing.md); your own method is "
        "[one file](../../CONTRIBUTING.md#adding-a-method).",
        "stages": "A stage follows the rounds of any method that it can be used with. [Stages](../stages.md) explains "
        "them and how to write one.",
    }[folder]
    return "\n".join([f"# {title}", "", more, "", "| name | what it does |", "|---|---|", *rows, ""])


def _page(folder: str, name: str, cls: type[Algorithm]) -> str:
    text = inspect.getdoc(cls) or ""
    text, _, _ = text.partition("\nArgs:")  # they are in the table of parameters
    arguments = [f"'{word}'" if "[" in word or "(" in word else word for word in example(folder, name)]
    python = f"fh.{cls.__name__}()"
    call = f"fh.run(federation, model, {python}, rounds=5)" if folder == "methods" else f"result.calibrate({python})"
    lines = [
        f"# {name}",
        "",
        text.strip(),
        "",
        *_facts(folder, cls),
        "",
        "```console",
        f"$ fedhead run {' '.join(arguments)} --out runs/{name}",
        "```",
        "",
        f"In Python: `{call}`, see [`fh.{cls.__name__}`][fedhead.{cls.__name__}].",
        "",
        "## Parameters",
        "",
        *_parameters(folder, name, cls),
        "",
        "## What it changes",
        "",
        *_hooks(cls),
        "",
        "## What crosses the wire",
        "",
        *_wire(folder, name, cls),
        "",
    ]
    return "\n".join(lines)


def _facts(folder: str, cls: type[Algorithm]) -> list[str]:
    facts = []
    if cls.head is not None:
        facts.append(f"- It needs a model with the `{cls.head}` head, which models given by name get automatically.")
    if set(cls.objectives) != set(OBJECTIVES):
        facts.append(f"- Objectives: {', '.join(f'`{name}`' for name in cls.objectives)}.")
    if cls.oracle:
        facts.append("- It needs all clients' data in one place, which only simulations have.")
    if cls.sums:
        facts.append(f"- Sent as plain sums over clients: {', '.join(f'`{name}`' for name in cls.sums)}.")
    return facts


def _parameters(folder: str, name: str, cls: type[Algorithm]) -> list[str]:
    entries = field_entries(cls, "method." if folder == "methods" else f"stage.{name}.")
    rows = [f"| `{e.name}` | `{e.default}` | {_cell(e.allowed)} | {_cell(e.meaning)} |" for e in entries]
    return ["| parameter | default | allowed | meaning |", "|---|---|---|---|", *rows] if rows else ["None."]


def _hooks(cls: type[Algorithm]) -> list[str]:
    """What the class computes, and the hooks that its bases override, as their docstrings say it."""
    rows: dict[str, str] = {}
    for base in cls.__mro__:
        if base.__module__.startswith(("fedhead.algorithm", "fedhead.core", "builtins")):
            break
        for word, value in vars(base).items():
            if inspect.isfunction(value) and not word.startswith("_") and (base is cls or word in HOOKS):
                rows.setdefault(word, inspect.getdoc(value) or "")
    if not rows:
        return ["Nothing: the defaults of every method are FedAvg's."]
    text = [f"| `{word}` | {_cell(doc.partition(PARAGRAPH)[0])} |" for word, doc in rows.items()]
    return ["| hook | computes |", "|---|---|", *text]


def _wire(folder: str, name: str, cls: type[Algorithm]) -> list[str]:
    """List the messages of rounds, or of the stage, as `fedhead wire` does."""
    method = name if folder == "methods" else "fedetf" if cls.head == "etf" else "fedavg"
    keys = {"rounds": 2, "public": "digits"} if folder == "methods" else {"rounds": 0}
    entries = fh.wire(method, [] if folder == "methods" else [name], model=MODEL, **keys)
    exchange = "work train" if folder == "methods" else f"work {name}"
    recorded = messages.Wire(entry for entry in entries if entry.exchange.startswith(exchange))
    sent = [entry for entry in recorded if entry.direction == messages.UP and entry.bytes]
    intro = f"For one client, with `{MODEL}` on the digits (4,810 weights, 64 features, 10 classes)"
    lines = [f"{intro}; `fedhead wire` lists it for your model:", ""] if sent else ["Clients send nothing.", ""]
    for table in recorded.tables() if sent else ():
        lines += [*table.markdown().splitlines(), ""]
    return lines[:-1]


def _first_line(cls: type[Algorithm]) -> str:
    return _cell((inspect.getdoc(cls) or "").partition("\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
