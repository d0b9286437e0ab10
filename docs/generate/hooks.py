"""What `mkdocs build` calls: adds the generated pages and the repository's files, and changes links to them."""

from __future__ import annotations

import os
import posixpath
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(__file__))

import components
import repository
from mkdocs.structure.files import File, Files

import reference

OVERVIEWS = ("methods/index.md", "stages/index.md", "reference/index.md")
GENERATED = components.pages() | reference.pages()
PAGES: dict[str, str] = {}  # the path in the repository of every page that has one, by its address


def on_config(config: Any) -> Any:
    """Put one entry per method, stage and group of the reference into the navigation."""
    config.nav = [_with_pages(entry) for entry in config.nav]
    return config


def _with_pages(entry: Any) -> Any:
    """An entry of the navigation, in which each overview is followed by its pages."""
    (title, inner), *_ = entry.items()
    found: list[Any] = []
    for item in inner:
        uri = item if isinstance(item, str) else next(iter(item.values()))
        if uri not in OVERVIEWS:
            found.append(item)
            continue
        below = [name for name in GENERATED if name.startswith(posixpath.dirname(uri)) and name != uri]
        found += [item, *below] if title == "Reference" else [{_heading(uri): [uri, *below]}]
    return {title: found}


def _heading(uri: str) -> str:
    return GENERATED[uri].partition("\n")[0].lstrip("# ")


def on_files(files: Files, config: Any) -> Files:
    """Add README, generated pages, and every file of the repository that a page links to."""
    PAGES.clear()
    PAGES.update({file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()})
    waiting = [(path, _read(path)) for path in PAGES.values()]
    waiting.append((repository.HOME, _add(files, config, repository.HOME)))
    for uri, text in GENERATED.items():
        files.append(File.generated(config, uri, content=text))
        PAGES[uri] = f"docs/{uri}"
        waiting.append((f"docs/{uri}", text))
    while waiting:
        path, text = waiting.pop()
        for target in repository.linked(path, text):
            known = files.get_file_from_path(repository.address(target)) is not None
            if not known and (repository.ROOT / target).exists():
                text = _add(files, config, target)
                waiting.append((PAGES.get(repository.address(target), target), text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links between files of the repository to links between pages."""
    path = PAGES.get(page.file.src_uri)
    return markdown if path is None else repository.relink(path, markdown)


def _read(path: str) -> str:
    return (repository.ROOT / path).read_text(encoding="utf-8")


def _add(files: Files, config: Any, path: str) -> str:
    """Add a file of the repository; returns its Markdown, if it has links to follow."""
    uri, found = repository.address(path), repository.content(path)
    files.append(File.generated(config, uri, content=found))
    folder = (repository.ROOT / path).is_dir()
    if not isinstance(found, str) or not (folder or path.endswith(".md")):
        return ""
    PAGES[uri] = f"{path}/index.md" if folder else path
    return found
