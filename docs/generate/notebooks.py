"""Writes the first three pages of the guide as notebooks under examples/: `python docs/generate/notebooks.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {"quickstart.md": "five_minutes.ipynb", "own_model.md": "own_model.ipynb", "choosing.md": "choosing.ipynb"}
PYTHON = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(page: str) -> str:
    """Return a page as a notebook: its text as cells of Markdown, its Python blocks as cells of code, no outputs.

    Args:
        page: The name of a file under docs/.

    Returns:
        The notebook, JSON of format 4.5.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#|\.\./)", "](../docs/", text)
    pieces = PYTHON.split(text)  # text and code in turns
    cells = [_cell(number, piece.strip()) for number, piece in enumerate(pieces) if piece.strip()]
    whole = {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, text: str) -> dict[str, Any]:
    source = text.splitlines(keepends=True)
    if number % 2 == 0:
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}
    code = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "execution_count": None, "outputs": []}
    return code | {"source": source}


if __name__ == "__main__":
    for page, name in PAGES.items():
        (ROOT / "examples" / name).write_text(notebook(page), encoding="utf-8")
