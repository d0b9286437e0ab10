"""The registry of analyses: each looks into trained runs and returns numbers and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedhead.core.component_check import check_function, first_docline
from fedhead.core.registry import Registry
from fedhead.experiment.reopen import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class AnalysisOptions:
    """The options of an analysis; each uses those that apply to it.

    Args:
        samples: Number of samples to use; None: the default of the analysis.
        rounds: Rounds whose local models are analyzed, besides those after the last.
        seed: Seed of what is drawn.
    """

    samples: int | None = None
    rounds: Sequence[int] = (1,)
    seed: int = 0


class AnalysisReport(NamedTuple):
    """The results of an analysis.

    Args:
        numbers: Anything that JSON can represent.
        figures: Matplotlib figures by the suffix of the file's name, "" for the main one; none by default.
    """

    numbers: Mapping[str, Any]
    figures: Mapping[str, Figure] = MappingProxyType({})


class Analysis(NamedTuple):
    """An analysis, one line of `fedhead ls analyses`."""

    description: str
    run: Callable[[Sequence[Trained], AnalysisOptions], AnalysisReport]


F = TypeVar("F", bound=Callable[..., Any])
ANALYSES = Registry[Analysis](
    "analysis",
    "fedhead.analyses",
    lambda found, name: _checked(found, name),
    home=["fedhead.analyses.ccvr", "fedhead.analyses.clientwise", "fedhead.analyses.geometry"],
)


def analysis(name: str, description: str = "") -> Callable[[F], F]:
    """Register an analysis under a name: a function (runs, options) that returns an `AnalysisReport`.

    Args:
        name: The name on the command line.
        description: One line for `fedhead ls analyses`; without it the docstring's first.

    Returns:
        A decorator that registers the function and returns it.
    """
    return ANALYSES.decorator(name, description)


def _checked(found: Any, name: str) -> Analysis:
    function = check_function(found, name, "analysis", ["runs", "options"], "a fedhead.AnalysisReport")
    return Analysis(getattr(found, "description", "") or first_docline(found), function)


def by_label(runs: Sequence[Trained]) -> dict[str, Trained]:
    """Return runs by their names in plots: method and partition, with the folder where two are the same."""
    labels = [f"{run.recipe.method} {run.recipe.partition}" for run in runs]
    names = [f"{text} ({run.path})" if labels.count(text) > 1 else text for text, run in zip(labels, runs, strict=True)]
    return dict(zip(names, runs, strict=True))
