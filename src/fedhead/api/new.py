"""Templates of a user's method, stage or model, with a test."""

from __future__ import annotations

import keyword
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedhead.core.system.errors import require, unknown

NEXT = {
    "method": "fedhead run digits method={file}:{name} rounds=5",
    "stage": "fedhead run digits 'stages=[{file}:{name}]' rounds=5",
    "model": "fedhead run digits model={file}:{name} rounds=5",
}


def new(kind: str, name: str, out: str | Path = ".") -> list[Path]:
    """Write a commented template and a passing test.

    Args:
        kind: `method`, `stage` or `model`.
        name: Name of the component, such as FedMine; the file has it in lower case.
        out: Output folder, which is created if necessary.

    Returns:
        The two files.

    Raises:
        BadInput: The kind is unknown, the name can't be used, or one of the files exists already.
    """
    if kind not in NEXT:
        raise unknown("kind", kind, NEXT)
    module = name.lower()
    require(
        name.isascii() and name.isidentifier() and not keyword.iskeyword(module) and not name.startswith("_"),
        f"the name {name!r} can't be used: write a word of letters, digits and _, such as FedMine",
    )
    require(
        find_spec(module) is None or (Path(out) / f"{module}.py").exists(),
        f"the name {name!r} is taken: Python has a module {module!r} already; choose another",
    )
    paths = [Path(out) / f"{module}.py", Path(out) / f"test_{module}.py"]
    for path in paths:
        require(not path.exists(), f"{path} exists already: choose another name, or another folder with --out")
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    values = {"Name": class_name(name), "module": module}
    for path, template in zip(paths, (f"{kind}.txt", f"test_{kind}.txt"), strict=True):
        text = (files("fedhead.api") / "templates" / template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
    return paths


def next_command(kind: str, name: str, out: str | Path = ".") -> str:
    """Return a command that uses the component written by `new`."""
    file = (Path(out) / f"{name.lower()}.py").as_posix()
    return NEXT[kind].format(file=file, name=name.lower() if kind == "model" else class_name(name))


def class_name(name: str) -> str:
    """Convert a name to CamelCase.

    >>> class_name("FedMine"), class_name("my_method")
    ('FedMine', 'MyMethod')
    """
    return name if name[0].isupper() else "".join(word.capitalize() for word in name.split("_"))
