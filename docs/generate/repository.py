"""Files of the repository outside docs/ that pages link to, as pages of the site."""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
from pathlib import Path

from fedhead.methods import METHODS
from fedhead.stages import STAGES

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([\w./-]+)(?=[#)])")
FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
CODE = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".cff": "yaml", "": "text"}
HOME = "README.md"
COMPONENT = re.compile(r"src/fedhead/(methods|stages)/(\w+)\.py")
REGISTRIES = {"methods": METHODS, "stages": STAGES}


def address(path: str) -> str:
    """Return where a file of the repository is on the site, relative to the folder of pages.

    Args:
        path: Its path below the repository's root.

    Returns:
        The address of a page, or of a file that is served as it is.
    """
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    component = COMPONENT.fullmatch(path)
    if component is not None and component[2] in REGISTRIES[component[1]]:
        return f"{component[1]}/{component[2]}.md"  # its own page says more than its source
    if (ROOT / path).is_dir():
        return f"project/{path}/index.md"
    suffix = Path(path).suffix
    return f"project/{path}.md" if suffix in CODE else f"project/{path}"


def linked(path: str, text: str) -> list[str]:
    """Return the files of the repository that a page links to.

    Args:
        path: The page's own path below the repository's root.
        text: Its Markdown.
    """
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), m[2])) for m in LINK.finditer(text)]


def relink(path: str, text: str) -> str:
    """Return a page's Markdown with its links changed from paths of the repository to those of the site."""
    start = posixpath.dirname(address(path)) or "."

    def change(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        return match[1] + posixpath.relpath(address(target), start)

    parts, end = [], 0
    for fence in FENCE.finditer(text):  # code stays as it is
        parts += [LINK.sub(change, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(change, text[end:])])


def content(path: str) -> str | bytes:
    """Return what the site shows of a file: Markdown of pages, code and folders, else the file's bytes."""
    file = ROOT / path
    if file.is_dir():
        return _folder(path)
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if file.suffix not in CODE:
        return file.read_bytes()
    return f"# {path}\n\n````{CODE[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"


def _folder(path: str) -> str:
    files = sorted(os.listdir(ROOT / path))
    rows = [f"| [{name}]({name}) | {_about(ROOT / path / name)} |" for name in files if not name.startswith(("_", "."))]
    return "\n".join([f"# {path.capitalize()}", "", "| file | what it shows |", "|---|---|", *rows, ""])


def _about(file: Path) -> str:
    """The first line of what a file says of itself."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if file.suffix == ".ipynb":
        return "".join(json.loads(text)["cells"][0]["source"]).partition("\n")[0].lstrip("# ") + " (notebook)"
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), "")
