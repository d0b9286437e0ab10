"""Several runs at once, and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhead.api.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from fedhead.report.page.inline import Report


class Results(list[Result]):
    """Several runs, as `fedhead.load_all` returns them."""

    @property
    def table(self) -> pd.DataFrame:
        """One line per run: where it is, the settings that differ, how far it came, and its accuracies."""
        import pandas as pd

        flat = [result.recipe.flat() for result in self]
        keys = list(dict.fromkeys(key for one in flat for key in one))
        differ = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
        lines = [
            {
                "run": str(result.path),
                **{key: one.get(key) for key in differ},
                "state": result.record.state,
                "accuracy": result.accuracy,
                "personal": result.personal,
                **{f"accuracy_{name}": row.get("accuracy") for name, row in result.stage_rows.items()},
            }
            for result, one in zip(self, flat, strict=True)
        ]
        return pd.DataFrame(lines)

    def show(self) -> Report:
        """Return the report's page about these runs, which notebooks show inline.

        Returns:
            The page; `save` writes it to a file.
        """
        from fedhead.report.page.inline import Report

        return Report([result.record for result in self])
