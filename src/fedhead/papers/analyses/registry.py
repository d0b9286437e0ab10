"""Registry of analyses, which compute numbers and figures from trained runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from fedhead.core.components.component_check import check_function, first_docline
from fedhead.core.components.registry import Registry
from fedhead.report.widths import WIDTHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedhead.runs.read_runs import Run
    from fedhead.runs.reopen import Trained


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of analyses; each analysis uses those that apply to it.

    Args:
        samples: Number of samples to use; None: the default of the analysis.
        rounds: Rounds whose local models are analyzed, in addition to one more round after the last.
        seed: Seed of random draws.
        metric: Metric of learning curves.
        width: Width of the figures in inches.
    """

    samples: int | None = None
    rounds: Sequence[int] = (1,)
    seed: int = 0
    metric: str = "accuracy"
    width: float = WIDTHS[2]


class AnalysisReport(NamedTuple):
    """Results of an analysis.

    Attributes:
        numbers: JSON-serializable values.
        figures: Matplotlib figures by suffix of the file name, "" for the main one.
    """

    numbers: Mapping[str, Any]
    figures: Mapping[str, Figure] = MappingProxyType({})


class Analysis(NamedTuple):
    """Registered analysis.

    Args:
        description: One-line description.
        run: Function of the analysis.
        reads: "models": it gets runs with models and data (`Trained`); "records": only the records of their folders
            (`fedhead.runs.read_runs.Run`), without data or checkpoint.
    """

    description: str
    run: Callable[[Sequence[Any], AnalysisOptions], AnalysisReport]
    reads: Reads = "models"


Reads = Literal["models", "records"]
F = TypeVar("F", bound=Callable[..., Any])
ANALYSES = Registry[Analysis](
    "analysis",
    "fedhead.papers.analyses",
    lambda component, name: _checked(component, name),
    home=[
        "fedhead.papers.analyses.ccvr",
        "fedhead.papers.analyses.calibration_data",
        "fedhead.papers.analyses.clientwise",
        "fedhead.papers.analyses.geometry",
        "fedhead.papers.analyses.records",
    ],
)
"""The analyses by name."""


def analysis(name: str, description: str = "", reads: Reads = "models") -> Callable[[F], F]:
    """Register an analysis under a name: a function (runs, options) that returns an `AnalysisReport`.

    Args:
        name: Name on the command line.
        description: One line for `fedhead ls analyses`; default: the first line of the docstring.
        reads: Input of the analysis, "models" or "records".

    Returns:
        A decorator that registers the function and returns it.
    """

    def register(function: F) -> F:
        vars(function)["reads"] = reads
        return ANALYSES.decorator(name, description)(function)

    return register


def _checked(component: Any, name: str) -> Analysis:
    function = check_function(component, name, "analysis", ["runs", "options"], "a fedhead.AnalysisReport")
    description = getattr(component, "description", "") or first_docline(component)
    return Analysis(description, function, getattr(component, "reads", "models"))


R = TypeVar("R", "Run", "Trained")


def by_label(runs: Sequence[R]) -> dict[str, R]:
    """Return runs by label: method and partition, then other keys that differ, then the folder."""
    labels = [f"{run.recipe.method} {run.recipe.partition}" for run in runs]
    if len(set(labels)) < len(labels):
        flat = [run.recipe.flat() for run in runs]
        differ = [k for k in dict.fromkeys(k for keys in flat for k in keys) if len({repr(f.get(k)) for f in flat}) > 1]
        known = ("method", "partition", "loggers", "metrics")
        details = [", ".join(f"{k}={f[k]}" for k in differ if k in f and k not in known) for f in flat]
        labels = [f"{text}, {rest}" if rest else text for text, rest in zip(labels, details, strict=True)]
    names = [f"{text} ({run.path})" if labels.count(text) > 1 else text for text, run in zip(labels, runs, strict=True)]
    return dict(zip(names, runs, strict=True))
