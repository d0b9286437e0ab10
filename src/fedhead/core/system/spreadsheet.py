"""Tables for spreadsheets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Prefix texts that a spreadsheet would run as formulas with an apostrophe; numbers are unchanged.

    >>> import pandas as pd
    >>> without_formulas(pd.DataFrame({"method": ["=1+1", "fedavg"], "value": [-1.0, 2.0]}))["method"].tolist()
    ["'=1+1", 'fedavg']
    """
    return table.map(without_formula).rename(columns=without_formula)


def without_formula(value: Any) -> Any:
    """Prefix a text that a spreadsheet would run as a formula with an apostrophe; return other values unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
