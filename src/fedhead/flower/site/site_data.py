"""A site's own data: a class folder, an .npz, a CSV of paths and labels, or a function of the site's."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhead.core.components.loading import load_object
from fedhead.core.system.errors import BadInput, user_code
from fedhead.core.system.special_files import read_text
from fedhead.core.tree.inputs import shape_of
from fedhead.data.federation import federation_file
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs import labels, targets
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.conversion import samples
from fedhead.data.inputs.labels import Classes
from fedhead.data.inputs.named_inputs import prepare_like
from fedhead.data.partitions.allocation import Rows
from fedhead.data.sources import image_folders
from fedhead.flower.wire.protocol import RunSpec
from fedhead.flower.wire.site_errors import SiteProblem


def federation(
    spec: RunSpec,
    number: int,
    data: str,
    *,
    base: Path,
    test: str | None = None,
    client_test: float | str | None = None,
    size: int | None = None,
    public: str | None = None,
) -> Federation:
    """The federation as one site sees it: its own samples under its own number, and no others.

    `data` and `test` are paths relative to `base`, or `file.py:function` or `module:function`; `client_test` is a share
    of the site's own samples.
    """
    train, held = load(data, spec, base, size)
    if test is not None:
        held, _ = load(test, spec, base, size)
    if held is not None and client_test is not None:
        raise BadInput(
            "a site's test samples come either from 'test' (or the data itself) or from 'client_test', not both"
        )
    shared = None if public is None else load(public, spec, base, size)[0]
    rows = _alone(np.arange(len(train.y), dtype=np.int64), number, len(spec.sites))
    made = Federation(
        train,
        rows,
        spec.classes,
        transform=spec.transform(),
        names=spec.names,
        title=data,
        public=shared,
        objective=spec.objective,
    )
    if held is not None:
        local = _alone(np.arange(len(held.y), dtype=np.int64), number, len(spec.sites))
        return replace(made, test=held, client_test=local, client_test_from="test")
    return made.with_client_test(client_test, int(spec.recipe["seed"]))


def share(whole: Federation, number: int) -> Federation:
    """What one client of a federation holds, and nothing of what the others hold."""
    own, local = whole.rows[number], None if whole.client_test is None else whole.client_test[number]
    if not len(own):
        raise SiteProblem("no-samples", f"client {number} holds no training samples in this partition")
    train, test, places = whole.train.take(own), None, None
    if local is not None and whole.client_test_from == "train":
        train = whole.train.take(np.concatenate([own, local]))
        places = np.arange(len(own), len(own) + len(local), dtype=np.int64)
    elif local is not None and whole.test is not None:
        test = whole.test.take(local) if len(local) else None
        places = np.arange(len(local), dtype=np.int64)
    return replace(
        whole,
        train=train,
        test=test,
        rows=_alone(np.arange(len(own), dtype=np.int64), number, len(whole)),
        client_test=None if places is None else _alone(places, number, len(whole)),
    )


def _alone(own: Rows, number: int, clients: int) -> list[Rows]:
    return [own if k == number else np.zeros(0, np.int64) for k in range(clients)]


def load(source: str, spec: RunSpec, base: Path, size: int | None = None) -> tuple[Samples, Samples | None]:
    """The samples (and, where the source has some, the test samples) that fit the run's spec."""
    path = base / os.path.expanduser(source)
    held: Any = None
    stated: Any = None
    if path.is_dir():
        return _checked(_folder(path, spec, size), spec, source), None
    if path.suffix == ".csv":
        return _checked(_csv(path, spec, size), spec, source), None
    if path.suffix == ".npz":
        found = federation_file.read(path, size, spec.recipe.get("encode"))
        x, held, stated = found.x, found.test, found.layout
        y = found.labels(named=spec.names is not None and targets.objective_of(spec.objective).has_classes)
    elif ":" in source and not path.exists():
        x, y, held = _function(source, base)
    else:
        raise BadInput(
            f"data {source!r}: {path} is not there; give a folder of class folders, an .npz or .csv file, "
            "module:function or file.py:function"
        )
    test = None if held is None else _fit(held[0], held[1], spec, f"{source}, test samples", stated)
    return _fit(x, y, spec, source, stated), test


def _fit(x: Any, y: Any, spec: RunSpec, source: str, stated: Any) -> Samples:
    """Samples that the run's model can take, or an error that says what differs."""
    has_classes = targets.objective_of(spec.objective).has_classes
    read: Any = labels.read(y, "y") if has_classes else targets.read(y, spec.objective)
    if not len(read):
        raise BadInput(f"data {source!r} holds no samples: give at least one")
    x, layout = prepare_like(x, spec.blank(), stated or spec.recipe.get("layout"), "x")
    if not has_classes and read.shape[1] != spec.classes:
        raise BadInput(f"data {source!r}: y has {read.shape[1]} columns, the run is for {spec.classes}")
    known = Classes.known(read, spec.names, spec.classes) if has_classes else Classes(spec.classes)
    return _checked(samples(x, read, known, layout, ""), spec, source)


def _checked(found: Samples, spec: RunSpec, source: str) -> Samples:
    if shape_of(found.x) != (wanted := shape_of(spec.blank())):
        raise BadInput(
            f"data {source!r} holds samples of shape {shape_of(found.x)}, the run is for {wanted}: "
            "bring them to that size (for image files: 'size' in site.yaml)"
        )
    return found


def _folder(path: Path, spec: RunSpec, size: int | None) -> Samples:
    found = [d.name for d in image_folders.subfolders(path)]
    names = spec.names if spec.names is not None else [str(c) for c in range(spec.classes)]
    unknown_classes = sorted(set(found) - set(names))
    if unknown_classes:
        raise BadInput(
            f"data {str(path)!r} has a class folder {unknown_classes[0]!r}, the run's classes are {', '.join(names)}"
        )
    return image_folders.decode(path, names, size, _channels(spec))


def _csv(path: Path, spec: RunSpec, size: int | None) -> Samples:
    """Image files and labels from the columns `path` and `label`; paths are relative to the CSV file."""
    if not path.is_file():
        raise BadInput(f"data {str(path)!r}: no such file")
    names = spec.names if spec.names is not None else [str(c) for c in range(spec.classes)]
    listed: list[tuple[Path, int]] = []
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise BadInput(f"data {str(path)!r}: its first line must name the columns 'path' and 'label'")
        for row in reader:
            if row["label"] not in names:
                raise BadInput(
                    f"data {str(path)!r}, line {reader.line_num}: the label {row['label']!r} is not among the run's "
                    f"classes {', '.join(names)}"
                )
            if row["path"] is None:
                raise BadInput(f"data {str(path)!r}, line {reader.line_num}: it has no path")
            listed.append((path.parent / row["path"], names.index(row["label"])))
    except csv.Error as error:
        raise BadInput(f"data {str(path)!r}, line {reader.line_num}: {error}") from None
    if not listed:
        raise BadInput(f"data {str(path)!r} holds no samples: give at least one")
    return image_folders.decode_list(path.parent, listed, size, _channels(spec))


def _channels(spec: RunSpec) -> int | None:
    return spec.shape[0] if len(spec.shape) == 3 else None


def _function(source: str, base: Path) -> tuple[Any, Any, Any]:
    """(x, y) or (x, y, x_test, y_test) from a function of the site's own, in a file or module beside site.yaml."""
    function, _ = load_object(source, f"data {source!r}", [base], modules_beside=True)
    with user_code(f"data {source!r}"):
        made = function()
    if not isinstance(made, tuple) or len(made) not in (2, 4):
        raise BadInput(f"data {source!r}: the function must return (x, y) or (x, y, x_test, y_test)")
    return made[0], made[1], None if len(made) == 2 else (made[2], made[3])
