"""Searches: the best settings, and the figures that `fedhead tune --plot` has written to the studies' folders."""

from __future__ import annotations

from fedhead.core.system.errors import BadInput
from fedhead.report.compare.pivot import brief
from fedhead.report.compare.study_trials import read_study
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, notes, panels, table
from fedhead.report.page.sections.analyses import pictures
from fedhead.report.table import Cell, Table, number


def section(content: Content) -> Section | None:
    """Return a table of the best settings of each study, and its figures."""
    body: list[list[Cell | str]] = []
    figures: list[str] = []
    remarks = []
    for folder in content.studies:
        try:
            trials = read_study(folder)
        except BadInput as error:
            remarks.append(str(error))
            continue
        best, states = trials.best, list(trials.table["state"])
        chosen = brief(", ".join(f"{key}={best[key]}" for key in trials.keys))
        counts = [number(states.count(state), "d") for state in ("complete", "pruned", "failed")]
        body.append([folder.name, trials.objective, number(float(best["value"])), chosen, *counts])
        figures += pictures(folder, str(folder))
    if not body and not remarks:
        return None
    head = ["study", "objective", "best value", "found", "complete", "pruned", "failed"]
    best_values = Table("Best settings, on validation samples", head, body)
    shown = table("tuning-table", best_values, wordy=["found"]) if body else ""
    return Section("tuning", "Tuning", shown + panels(figures) + notes(remarks))
