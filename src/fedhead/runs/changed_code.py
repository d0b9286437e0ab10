"""Whether results that lie in one folder are of one version of the user's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.recipes import components
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import CONFIG, RunFolder


def check_runs(folder: Path, runs: Mapping[Path, Recipe], *, more: bool, allow: bool) -> None:
    """Refuse to add runs to those of an older version of the user's own code.

    Args:
        folder: What holds the runs.
        runs: The runs by their folders, begun or not.
        more: Whether any are to be run.
        allow: Whether to add them all the same, with a warning.

    Raises:
        BadInput: With what has changed.
    """
    older: dict[str, list[Path]] = {}
    for path, recipe in runs.items():
        for line in _changed_since(path, recipe):
            older.setdefault(line, []).append(path)
    check(folder, list(older), len({path for paths in older.values() for path in paths}), more=more, allow=allow)


def check(folder: Path, changed: Sequence[str], count: int, *, more: bool, allow: bool) -> None:
    """Refuse to add results to those of an older version of the user's own code.

    Args:
        folder: What holds the results.
        changed: What has changed since the first of them, as `components.changed` says it.
        count: How many results of the older version there are.
        more: Whether any are to be added; else it is only said that these are older.
        allow: Whether to add them all the same, with a warning.

    Raises:
        BadInput: With what has changed.
    """
    if not changed or not count:
        return
    what = f"{', '.join(changed)} changed since {folder} was begun"
    results = "1 result" if count == 1 else f"{count} results"
    if not more:
        warn_once(f"{what}: its results are those of the old code; select another folder with --out for new ones")
    elif allow:
        warn_once(f"{what}: it keeps {results} of the old code, the others are those of the new one")
    else:
        raise BadInput(
            f"{what}, and it has {results} of the old code, which must not be mixed with those of the new one: put the "
            "old code back, select another folder with --out, or add --allow-changed-code (allow_changed_code=True)"
        )


def _changed_since(path: Path, recipe: Recipe) -> list[str]:
    """Return what has changed since a run that has results was begun."""
    if not (path / CONFIG).exists():
        return []
    try:
        folder = RunFolder.open(path)
        recorded = folder.environment().get("components", [])
        begun = folder.finished or folder.checkpoint_round() > 0
    except BadInput:  # a damaged folder, which its own run will name
        return []
    return components.changed(recipe, recorded) if begun and any("file" in entry for entry in recorded) else []
