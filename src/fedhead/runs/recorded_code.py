"""Comparison of the code recorded with results and the current code.

`environment.json` lists the source of each component of a run, with a digest of its file (`components.sources`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhead.core.components.loading import find_file
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.executors.select import EXECUTORS
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.search_paths import file_of
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG

Sources = Sequence[Mapping[str, str]]  # as `components.sources` returns them


def own_executor(recorded: Sources) -> str | None:
    """Return the name of the user's executor that a run was started with; None for a built-in one."""
    return next((entry["name"] for entry in recorded if entry["kind"] == EXECUTORS.kind), None)


def check_present(recipe: Recipe, recorded: Sources, run: Path, executor: str | None = None) -> None:
    """Check that the code of a run is available; the error says what to install or where to put it."""
    registries = {(registry.kind, name): registry for registry, name in components.named(recipe)}
    if executor is not None:
        registries[EXECUTORS.kind, executor] = EXECUTORS
    for entry in recorded:
        registry = registries.get((entry["kind"], entry["name"]))
        if registry is None or "file" not in entry:
            continue
        title = f"{run} needs the {entry['kind']} {entry['name']}"
        file = file_of(entry["name"])
        if file is not None:
            if find_file(file, recipe.folders) is None:
                raise BadInput(f"{title}, which was in {entry['file']}: put the file back there, or into {run}")
            continue
        try:
            registry.source(entry["name"], recipe.folders)
        except BadInput as error:
            package = entry.get("distribution")
            version = f"=={entry['version']}" if "version" in entry else ""
            fix = f"install {package}{version}" if package else f"put the module {entry['module']} on PYTHONPATH"
            raise BadInput(f"{title}, which is not here: {fix} ({error})") from error


def changes(recorded: Sources, current: Sources) -> list[str]:
    """Return one line for each file or package that differs between two records, with its components."""
    now = {(entry["kind"], entry["name"]): entry for entry in current}
    lines: dict[str, list[str]] = {}
    for old in recorded:
        new = now.get((old["kind"], old["name"]))
        if new is None or "file" not in old:
            continue
        component = f"{old['kind']} {old['name']}"
        if old.get("digest") != new.get("digest"):
            lines.setdefault(new["file"], []).append(component)
        elif old.get("version") != new.get("version"):
            versions = f"{old.get('version')} to {new.get('version')}"
            lines.setdefault(f"{old.get('distribution')} {versions}", []).append(component)
    return [f"{source} ({', '.join(names)})" for source, names in lines.items()]


def check_runs(folder: Path, runs: Mapping[Path, Recipe], *, more: bool, allow: bool) -> None:
    """Check that new runs use the same user code as the existing ones.

    Args:
        folder: Folder of all runs.
        runs: Recipes by run folder, started or not.
        more: Whether new runs will be added to the folder.
        allow: Whether changed code is only a warning.

    Raises:
        BadInput: If code has changed; lists the changed files.
    """
    older: dict[str, list[Path]] = {}
    for path, recipe in runs.items():
        for line in _changes_since(path, recipe):
            older.setdefault(line, []).append(path)
    count = len({path for paths in older.values() for path in paths})
    check_results(folder, list(older), count, "result", more=more, allow=allow)


def _changes_since(path: Path, recipe: Recipe) -> list[str]:
    """Return the code changes since a run with results was started."""
    if not (path / CONFIG).exists():
        return []
    try:
        folder = RunFolder.open(path)
        recorded = folder.environment().get("components", [])
        begun = folder.finished or folder.checkpoint.round > 0
    except BadInput:  # damaged; reported by that run itself
        return []
    uses_files = any("file" in entry for entry in recorded)
    return changes(recorded, components.sources(recipe)) if begun and uses_files else []


def check_results(folder: Path, lines: Sequence[str], count: int, kind: str, *, more: bool, allow: bool) -> None:
    """Check that new results use the same user code as the existing ones.

    Args:
        folder: Folder of the results.
        lines: Code changes since the first result, as returned by `changes`.
        count: Number of results of the older version.
        kind: Name of a result, such as "round".
        more: Whether any will be added; otherwise a warning says that these are older.
        allow: Whether changed code is only a warning.

    Raises:
        BadInput: If code has changed; lists the changed files.
    """
    if not lines or not count:
        return
    reason = f"{', '.join(lines)} changed since {folder} was begun"
    results = f"{count} {kind}{'' if count == 1 else 's'}"
    if not more:
        warn_once(f"{reason}: its results are those of the old code; select another folder with --out for new ones")
    elif allow:
        warn_once(f"{reason}: it keeps {results} of the old code, the others are those of the new one")
    else:
        raise BadInput(
            f"{reason}, and it has {results} of the old code, which must not be mixed with those of the new one: put "
            "the old code back, select another folder with --out, or add --allow-changed-code (in Python "
            "allow_changed_code=True, in a server.yaml allow_changed_code: true)"
        )
