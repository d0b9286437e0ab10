"""Metrics that sites compute and report, and notes about the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedhead.core.components.component_syntax import read_call
from fedhead.metrics.registry import METRICS, Measured, Metric, find

NOT_AT_SITES = "not known: sites compute fedhead's own metrics only"
NO_VALUE = "it has no value for its test samples, or does not report it"


def computed_at_sites(metrics: Iterable[str], objective: str) -> dict[str, Metric]:
    """Return the metrics that sites compute: only built-in ones, since sites run no code of the server.

    Metrics of the clients' accuracies are excluded: the server computes them.
    """
    names = {text: read_call(text, "metric").name for text in metrics}
    built_in = [text for text, name in names.items() if name in METRICS and METRICS.permits(name, ())]
    candidates = find(built_in, objective=objective) if built_in or not names else {}
    return {name: metric for name, metric in candidates.items() if not metric.of_clients}


def not_at_sites(metrics: Mapping[str, Metric], objective: str) -> dict[str, str]:
    """Return a record's notes about the metrics that no site computes."""
    of_samples = [name for name, metric in metrics.items() if not metric.of_clients]
    computed = computed_at_sites(of_samples, objective) if of_samples else {}
    return {f"client_metrics.{name}": NOT_AT_SITES for name in of_samples if name not in computed}


def reported(names: Iterable[str], values: Mapping[str, float | None]) -> Measured:
    """Return the values of requested metrics in a site's response, without the site's reasons."""
    measured = Measured()
    for name in names:
        value = values.get(name)
        measured.values[name] = math.nan if value is None else value
        if value is None:
            measured.notes[name] = NO_VALUE
    return measured
