"""Content of a page: the runs, arranged once by method and setting."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedhead.metrics.records import Row
from fedhead.report.compare.comparison_table import ComparisonTable, compare
from fedhead.report.compare.measured import Measured, of_runs
from fedhead.report.compare.pivot import Arrangement, flat_recipe, natural
from fedhead.report.compare.study_trials import study_folders
from fedhead.report.metric_names import METRICS, metric_label
from fedhead.report.page.charts import SYMBOLS, Style, style
from fedhead.report.table import Cell
from fedhead.runs.read_runs import FoundRuns, Run, code_versions, find_runs
from fedhead.runs.run_folder_schema import CONFIG


@dataclass(frozen=True)
class Entry:
    """One method, possibly followed by a stage, in one setting.

    Args:
        name: Method, with the setting if there are several.
        label: Method with its stage.
        method: Method without its stage.
        column: Setting.
        stage: Stage; "" for the end of the rounds.
        runs: Finished runs, one per seed and split.
        unfinished: Interrupted, running or diverged runs, at most one for each seed and split without a finished run.
    """

    name: str
    label: str
    method: str
    column: str
    stage: str
    runs: list[Run]
    unfinished: list[Run]

    def records(self) -> list[Row]:
        """Return the final records of the finished runs, or of their stage."""
        results = [run.result or {} for run in self.runs]
        return results if not self.stage else [(record.get("stages") or {}).get(self.stage) or {} for record in results]


@dataclass(frozen=True)
class Content:
    """The runs and studies that a page shows.

    Args:
        runs: The runs.
        broken: Run folders that can't be read, with the reasons.
        live: Whether runs may continue while the page is shown.
        studies: Folders of searches.
        labels: The user's labels of methods, stages or rows.
    """

    runs: Sequence[Run]
    broken: Mapping[Path, str] = field(default_factory=dict)
    live: bool = False
    studies: Sequence[Path] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def arrangement(self) -> Arrangement:
        """Recipe keys of rows and columns."""
        return Arrangement.of([flat_recipe(run.recipe, run.left_out) for run in self.runs], labels=self.labels)

    def column(self, run: Run) -> str:
        """Return the label of a run's setting."""
        return self.arrangement.column(flat_recipe(run.recipe, run.left_out))

    @cached_property
    def parent(self) -> Path:
        """Deepest folder that contains all run folders."""
        with suppress(ValueError):  # raised for no paths, or for absolute and relative paths together
            return Path(os.path.commonpath([path.parent for path in (*(run.path for run in self.runs), *self.broken)]))
        return Path()

    def name(self, path: Path) -> str:
        """Return the path of a run folder below the common folder."""
        return str(path.relative_to(self.parent) if path.is_relative_to(self.parent) else path)

    @cached_property
    def entries(self) -> list[Entry]:
        """Methods and their stages by setting, each method followed by its stages."""
        entries: dict[tuple[str, str, str], Entry] = {}
        labels = [(self.arrangement.row(run.recipe), self.column(run), run) for run in self.runs]
        several = len({column for _, column, _ in labels}) > 1
        for method, column, run in sorted(labels, key=lambda label: not label[2].finished):  # finished runs first
            for stage in ("", *(((run.result or {}).get("stages") or {}) if run.finished else ())):
                label = self.arrangement.row(run.recipe, stage)
                new = Entry(f"{method}, {column}" if several else method, label, method, column, stage, [], [])
                entry = entries.setdefault((method, label, column), new)
                if not any(_replicate(run) == _replicate(other) for other in (*entry.runs, *entry.unfinished)):
                    (entry.runs if run.finished else entry.unfinished).append(run)
        order = list(dict.fromkeys(method for method, _, _ in labels))
        return sorted(entries.values(), key=lambda entry: order.index(entry.method))

    @cached_property
    def methods(self) -> list[Entry]:
        """The entries without a stage: results at the end of the rounds."""
        return [entry for entry in self.entries if not entry.stage]

    @cached_property
    def columns(self) -> list[str]:
        """The settings, in their order."""
        return sorted({entry.column for entry in self.entries}, key=natural)

    def names(self, entry: Entry) -> list[Cell | str]:
        """Return the first cells of an entry's row: its method, and its setting if there are several."""
        return [entry.method, entry.column] if len(self.columns) > 1 else [entry.method]

    def head(self, *others: str) -> list[str]:
        """Return the headings of a table whose rows begin with `names`."""
        return ["method", "setting", *others] if len(self.columns) > 1 else ["method", *others]

    def of(self, column: str) -> list[Entry]:
        """Return the entries of a setting."""
        return [entry for entry in self.entries if entry.column == column]

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Color and dashes of each method, the same in every chart."""
        return {method: style(i) for i, method in enumerate(dict.fromkeys(entry.method for entry in self.entries))}

    @cached_property
    def symbols(self) -> dict[str, str]:
        """Marker of each stage, the same in every chart."""
        stages = dict.fromkeys(entry.stage for entry in self.entries if entry.stage)
        return {stage: SYMBOLS[i % len(SYMBOLS)] for i, stage in enumerate(stages)}

    @cached_property
    def measured(self) -> list[Measured]:
        """Measurements of the finished runs."""
        return of_runs([run for run in self.runs if run.finished])

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The metrics of finished runs, with the labels that are shown."""
        values = {name for m in self.measured for name in m.values}
        rows = [row for run in self.runs for row in run.rows]
        recorded = dict.fromkeys(name for row in rows for name in row.get("metrics") or {})
        recorded |= dict.fromkeys(f"personal_{name}" for row in rows for name in row.get("personal_metrics") or {})
        last = any(run.recipe.last_rounds > 1 for run in self.runs)
        names = [name for name in METRICS if name in values and (last or name != "accuracy_mean")]
        return {name: metric_label(name) for name in [*names, *(n for n in recorded if n in values)]}

    def compared(self, metric: str, baseline: str | None = None, gains: bool = True) -> ComparisonTable:
        """Return the comparison of the methods by a metric, with or without gains over a baseline."""
        return compare(self.measured, metric, baseline, arrangement=self.arrangement, gains=gains)

    @cached_property
    def notes(self) -> list[str]:
        """Notes about excluded folders."""
        stopped = [] if self.live else [run for run in self.runs if not run.finished]
        return [
            *(f"{run.path} does not count: {run.state}" for run in stopped),
            *(self.compared(next(iter(self.metrics)), gains=False).pivot.notes if self.metrics else ()),
            *code_versions(self.runs),
            *(f"{path} is broken and does not count: {why}" for path, why in self.broken.items()),
        ]


def load(paths: Sequence[str | Path], labels: Mapping[str, str] | None = None) -> Content:
    """Read the runs below some folders, and find the studies.

    Args:
        paths: Run folders, or folders that contain them.
        labels: The user's labels of methods, stages or rows.

    Raises:
        BadInput: If there are neither readable runs nor studies, or a label matches no method, stage or row.
    """
    studies = study_folders(paths)
    if studies:  # a search without `--final` has no run folder
        paths = [path for path in paths if any(Path(path).glob(f"**/{CONFIG}")) or not study_folders([path])]
    folders = find_runs(paths) if paths else FoundRuns([], {})
    content = Content(folders.runs, folders.broken, studies=studies, labels=labels or {})
    content.arrangement.check_labels((run.recipe, stage) for run in folders.runs for stage in ("", *run.stage_rows))
    return content


def class_names(runs: Iterable[Run], classes: int) -> list[str]:
    """Return the names of the runs' classes, or their numbers if there are no names or different ones."""
    names = {run.class_names for run in runs}
    common = names.pop() if len(names) == 1 else None
    return list(common) if common is not None and len(common) == classes else [str(c) for c in range(classes)]


def _replicate(run: Run) -> tuple[int, int | None]:
    return run.recipe.seed, run.recipe.partition_seed
