"""Guarantees of differential privacy of the runs."""

from __future__ import annotations

from fedhead.privacy.guarantee import Guarantee
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, table
from fedhead.report.table import Cell, Table


def section(content: Content) -> Section | None:
    """Return one row per release: the largest ε over its runs, δ, unit, mechanism and assumptions."""
    body: list[list[Cell | str]] = []
    for entry in content.entries:
        rows = entry.records() if entry.stage else [row for run in entry.runs for row in run.rows[-1:]]
        guarantees = [Guarantee(**row["privacy"]) for row in rows if row.get("privacy")]
        if guarantees:
            given = max(guarantees, key=lambda each: each.epsilon)
            unit = f"{given.unit}, {given.neighbourhood}"
            numbers = [f"{given.epsilon:.3g}" if given.secret else "none: test noise", f"{given.delta:g}"]
            texts = [unit, given.mechanism, "; ".join(given.assumptions)]
            body.append([*content.names(entry), given.release, *numbers, *texts])
    if not body:
        return None
    head = content.head("release", "ε", "δ", "unit", "mechanism", "assumptions")
    remark = "<p>Messages that are not listed have no differential privacy.</p>"
    shown = table("privacy-table", Table("Differential privacy", head, body), wordy=["setting", "assumptions"])
    return Section("privacy", "Privacy", shown + remark)
