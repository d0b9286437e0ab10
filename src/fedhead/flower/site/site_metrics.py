"""Metrics of sites: those that a site computes for its model and reports, and what is recorded of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedhead.core.components.component_syntax import read_call
from fedhead.metrics.registry import METRICS, Measured, Metric, find

NOT_AT_SITES = "not known: sites compute fedhead's own metrics only"
NO_VALUE = "it has no value for its test samples, or does not report it"


def computed_at_sites(metrics: Iterable[str]) -> dict[str, Metric]:
    """Return the metrics that sites compute, by name: fedhead's own, as no site runs a server's code unasked.

    Metrics of the clients' accuracies are left out: the server computes them.
    """
    named = {text: read_call(text, "metric").name for text in metrics}
    own = [text for text, name in named.items() if name in METRICS and METRICS.permits(name, ())]
    return {name: one for name, one in find(own).items() if not one.of_clients}


def not_at_sites(metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Return the notes of a record about the metrics that no site computes."""
    of_samples = [name for name, one in metrics.items() if not one.of_clients]
    computed = computed_at_sites(of_samples)
    return {f"client_metrics.{name}": NOT_AT_SITES for name in of_samples if name not in computed}


def reported(asked: Iterable[str], values: Mapping[str, float | None]) -> Measured:
    """Return what a site's response says of the metrics that it was asked for; the reasons stay at the site."""
    found = Measured()
    for name in asked:
        value = values.get(name)
        found.values[name] = math.nan if value is None else value
        if value is None:
            found.notes[name] = NO_VALUE
    return found
