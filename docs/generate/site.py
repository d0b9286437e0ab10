"""Writes every page of the site into build/guide, from where Zensical renders it: `make docs`.

The pages are those of docs/, README, the generated ones, and every file of the repository that one of them links to.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(__file__))

import components
import repository

import reference

FOLDERS = ("methods", "stages", "reference")  # of generated pages; each has its own navigation


def write(folder: Path) -> None:
    """Write the sources of the site.

    Args:
        folder: Replaced by the pages.
    """
    generated = components.pages() | reference.pages()
    pages: dict[str, tuple[str, str | bytes]] = {}  # path in the repository and content, by address
    waiting = [(f"docs/{address}", text) for address, text in generated.items()]
    waiting += [(path, repository.content(path)) for path in [repository.HOME, *_guide()]]
    while waiting:
        path, content = waiting.pop()
        address = repository.address(path)
        path += "/index.md" * (repository.ROOT / path).is_dir()
        pages[address] = path, content
        if isinstance(content, str) and address.endswith(".md"):
            for target in repository.linked(path, content):
                if repository.address(target) not in pages and (repository.ROOT / target).exists():
                    waiting.append((target, repository.content(target)))
    shutil.rmtree(folder, ignore_errors=True)
    for address, (path, content) in pages.items():
        file = folder / address
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else repository.relink(path, content).encode())
    for name in FOLDERS:
        below = [address for address in generated if address.startswith(f"{name}/")]
        below.sort(key=lambda address: not address.endswith("index.md"))
        entries = [f"* [{_title(generated[address])}]({Path(address).name})\n" for address in below]
        (folder / name / "SUMMARY.md").write_text("".join(entries), encoding="utf-8")


def _guide() -> list[str]:
    """Return the pages of the guide and its style sheet."""
    docs = repository.ROOT / "docs"
    return [f"docs/{file.name}" for file in sorted(docs.glob("*.md"))] + ["docs/site.css"]


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


if __name__ == "__main__":
    write(repository.ROOT / "build" / "guide")
