"""Guarantees of differential privacy of the runs."""

from __future__ import annotations

from fedhead.privacy.guarantee import Guarantee
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, table
from fedhead.report.table import Cell, Table


def section(content: Content) -> Section | None:
    """Return one row per release: ε, δ, unit, mechanism and assumptions."""
    body: list[list[Cell | str]] = []
    for entry in content.entries:
        records = [record["privacy"] for record in entry.records() if record.get("privacy")]
        if records:
            given = Guarantee.from_json(records[0])
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
