"""Comparison of methods over settings and seeds: `fedhead.compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhead.api.record import RecordedResult
from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Above, Below
from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput
from fedhead.report.compare import comparison_text, measured
from fedhead.report.compare.comparison_table import ComparisonTable
from fedhead.report.compare.comparison_table import compare as compare_measured
from fedhead.report.table import Table
from fedhead.runs import read_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Level = Annotated[float, Above(0), Below(1)]


@dataclass(frozen=True)
class MethodComparison:
    """Comparison of methods over settings, returned by `fedhead.compare`.

    Args:
        numbers: Values by method and setting, paired gains and ranks.
    """

    numbers: ComparisonTable

    @property
    def table(self) -> pd.DataFrame:
        """Means, one row per method and one column per setting."""
        import pandas as pd

        pivot = self.numbers.pivot
        frame = pd.DataFrame(index=pd.Index(pivot.rows, name="method"), columns=pivot.headings(), dtype=float)
        for (i, j), cell in pivot.cells.items():
            frame.iloc[i, j] = cell.mean
        return frame

    @property
    def results(self) -> pd.DataFrame:
        """Mean, deviation, interval and paired difference from the baseline, one row per method and setting."""
        import pandas as pd

        return pd.DataFrame(comparison_text.records(self.numbers))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the comparison: excluded runs and missing pairs."""
        return self.numbers.notes

    def tables(self) -> list[Table]:
        """Return the formatted tables: values, and paired gains and ranks if available."""
        return comparison_text.tables(self.numbers)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the comparison to a file.

        Args:
            path: Output file; its suffix (.md, .csv or .tex) selects the format.

        Raises:
            BadInput: If the suffix is unknown.
        """
        path = Path(path)
        text = comparison_text.FORMATS.get(path.suffix.lower())
        if text is None:
            raise BadInput(f"{path}: end its name in .md, .csv or .tex")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as draft:
            draft.write_text(text(self.numbers), encoding="utf-8")

    def diagram(self, width: float = 6.9) -> Figure:
        """Draw the critical difference diagram of the mean ranks (Demšar, 2006, Fig. 1).

        Args:
            width: Width in inches.

        Raises:
            BadInput: If there are no two methods with values in two settings.
        """
        from fedhead.report.compare import rank_diagram

        if self.numbers.ranking is None:
            raise BadInput(
                "a diagram of ranks needs at least two methods, all of them with values in the same two settings: "
                "give runs of these alone, such as a sweep's folder"
            )
        return rank_diagram.critical_difference(self.numbers.ranking, width)

    def __repr__(self) -> str:
        """Show the means."""
        return f"{type(self).__name__} of {self.numbers.metric}\n{self.table.round(2)}"


Given = str | PathLike[str] | RecordedResult


def compare(
    runs: str | PathLike[str] | Sequence[Given],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    by: str | Sequence[str] = (),
    level: float = 0.95,
    labels: Mapping[str, str] | None = None,
) -> MethodComparison:
    """Compare methods over settings and seeds.

    Runs that differ only in their seed or split are repetitions. Rows are methods and their stages, columns are the
    recipe keys that vary. Differences from the baseline are paired over the same seed and split. Only finished runs
    count; `notes` lists excluded runs and missing pairs.

    Args:
        runs: Results, run folders, folders of run folders, or patterns such as "runs/*".
        metric: "accuracy", "personal", "test_loss" or a metric of the runs; None: the accuracy, if there is one.
        baseline: Name of a method or label of a row; None: fedavg, or the first row.
        by: Recipe keys of the columns; empty: all keys that vary.
        level: Confidence level of the intervals.
        labels: Your own labels, by the name of a method or stage or by the label of a row, such as
            {"fedprox (mu=0.1)": "FedProx, weak"}.

    Returns:
        The comparison: as data frames, as tables, and as a diagram of ranks.

    Raises:
        BadInput: If there is nothing to compare, or no such metric, baseline, key or labeled method.
    """
    given: Sequence[Given] = [runs] if isinstance(runs, str | PathLike) else list(runs)
    results = [item for item in given if isinstance(item, RecordedResult)]
    patterns = [str(item) for item in given if not isinstance(item, RecordedResult)]
    records, notes = [result.record for result in results], list[str]()
    if patterns:
        runs_there, broken = read_runs.find_runs(patterns)
        notes += [f"{path} can't be read and does not count: {why}" for path, why in broken.items()]
        records += runs_there
    entries = measured.of_runs([run for run in records if run.split is not None])
    notes += _notes(records)
    keys = [by] if isinstance(by, str) else list(by)
    level = check("level", level, Level)
    return MethodComparison(compare_measured(entries, metric, baseline, keys, level, notes, labels=labels))


def _notes(runs: Sequence[read_runs.Run]) -> list[str]:
    """Return notes about excluded runs and about several versions of the code."""
    notes = [f"{run.path} does not count: {run.state}" for run in runs if not run.finished]
    finished = [run for run in runs if run.finished]
    notes += [
        f"{run.path} does not count: its partition.npz is gone, by which runs are paired"
        for run in finished
        if run.split is None
    ]
    versions = {str((run.environment.get("versions") or {}).get("fedhead")) for run in finished if run.folder}
    if len(versions) > 1:
        notes.append(f"the runs are of several versions of fedhead: {', '.join(sorted(versions))}")
    notes += [
        f"model {model} was a module, which starts from its own weights: runs of one seed are pairs only if they had "
        "the same module; a function that builds it follows the seed"
        for model in sorted({str(run.recipe.model) for run in finished if run.was_module})
    ]
    return notes + read_runs.code_versions(runs)
