"""Which rounds are evaluated is part of a result where callbacks decide by them, and of no other result."""

from __future__ import annotations

from pathlib import Path

from tiny_table import CPU, rows, tiny

from fedhead.papers.tables.paper_tables import PaperCell
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.results import digest

STOPPING = {"rounds": 6, "callbacks": ["early_stopping(metric=train_loss, min_delta=10, patience=1)"]}
KEEPING = {"rounds": 6, "validation": 0.2, "callbacks": ["best_model(metric=loss)"]}


def cell() -> PaperCell:
    return tiny().cells(pick=["mild fedavg before"])[0]


def test_evaluate_every_counts_where_a_recipe_has_callbacks() -> None:
    for own in (STOPPING, KEEPING):
        watched = cell().override(own)
        assert digest(watched.override({"evaluate_every": 2})) != digest(watched)
        assert digest(watched.override({"evaluate_every": 1})) == digest(watched)  # the default
        assert digest(watched.override({"loggers": ["csv"]})) == digest(watched)
    assert digest(cell().override({"evaluate_every": 2})) == digest(cell())
    assert digest(cell().override({"evaluate_every": 2, "callbacks": []})) == digest(cell())


def test_a_stored_result_is_not_that_of_other_evaluated_rounds(tmp_path: Path) -> None:
    def measure(every: int) -> list[int]:
        outcome = reproduce(
            tiny(),
            tmp_path / "runs",
            pick=["mild fedavg before"],
            seeds=1,
            overrides={**KEEPING, "evaluate_every": every},
            results=tmp_path,
            compute=CPU,
        )
        assert outcome.cells[0].mean is not None
        return [len(rows(tmp_path)), len({row["digest"] for row in rows(tmp_path)})]

    assert [measure(every) for every in (1, 5, 1)] == [[1, 1], [2, 2], [2, 2]]
