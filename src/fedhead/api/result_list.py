"""List of results, with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhead.api.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from fedhead.report.page.page import Page


class Results(list[Result]):
    """List of results, returned by `fedhead.load_all`."""

    @property
    def table(self) -> pd.DataFrame:
        """Folder, differing recipe keys, status and accuracies, one row per run."""
        import pandas as pd

        flat = [result.recipe.flat() for result in self]
        keys = list(dict.fromkeys(key for keys_of_run in flat for key in keys_of_run))
        differ = [key for key in keys if any(keys_of_run.get(key) != flat[0].get(key) for keys_of_run in flat)]
        lines = [
            {
                "run": str(result.path),
                **{key: keys_of_run.get(key) for key in differ},
                "state": result.record.state,
                "accuracy": result.accuracy,
                "personal": result.personal,
                **{f"accuracy_{name}": row.get("accuracy") for name, row in result.stage_rows.items()},
            }
            for result, keys_of_run in zip(self, flat, strict=True)
        ]
        return pd.DataFrame(lines)

    def show(self) -> Page:
        """Return the report of these runs, which notebooks show inline.

        Returns:
            The page; `save` writes it to a file.
        """
        from fedhead.report.page.content import Content
        from fedhead.report.page.page import page

        return page(Content([result.record for result in self]))
