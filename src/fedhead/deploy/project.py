"""The folder of a deployment: what `fedhead deploy init` writes and the other commands read.

app/                  what `flwr run` bundles and sends to every site: a pyproject.toml, nothing else
server.yaml           what is trained, and with which sites
sites/NAME/site.yaml  where a site's data is; the folder goes to the site's machine
certs/                what `fedhead deploy certs` writes
.deploy/              logs, ports and process numbers of `fedhead deploy up`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhead.core.errors import BadInput
from fedhead.experiment import build
from fedhead.experiment.recipe import load
from fedhead.flower.files import RECIPE_DATA, ServerFile, SiteFile

_PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "A federation of fedhead's"
license = "Apache-2.0"
dependencies = []  # fedhead[flower] is installed on every machine beforehand

[tool.flwr.app]
publisher = "fedhead"
fab-include = ["pyproject.toml"]  # the bundle goes to every site: whatever else may come to lie here stays

[tool.flwr.app.components]
serverapp = "fedhead.flower.server_app:app"
clientapp = "fedhead.flower.client_app:app"

[tool.flwr.app.config]
server = "{server}"  # server.yaml, as the SuperLink's machine sees it
resume = false
insecure = false  # true: nodes have no keys, so that a site's name is not held against its key
state = ""  # for Flower's own simulation: where clients keep their states
"""

_SERVER = """\
# What the server runs. Paths are relative to this file.
recipe: {recipe}
set: {set}  # key=value on top of the recipe
out: run  # the run folder: figures, checkpoint, final models
sites: {sites}  # their names; a place in this list is the client's number
test: {test}  # the server's own test samples: an .npz, a folder, a CSV, module:function; recipe: the data set's
quorum: {quorum}  # the fewest sites with which a round counts
round_seconds: 600  # for a site's answer
join_seconds: 120  # for all sites to come
keys: certs/sites  # the sites' public keys, NAME.pub: a node with another key can't use a site's name
# For data of your own, say what every site's samples are:
# classes: [cat, dog]  # names, or their number
# shape: [3, 32, 32]  # channels, height, width
"""

_SITE = """\
# What this site is. Paths are relative to this file; this file and the data never leave the site.
name: {name}
data: {data}  # a folder of class folders, an .npz (x, y), a .csv (path,label), module:function; recipe: its share
# test: test.npz  # test samples of its own, or a share of `data`:
# client_test: 0.2
# model: resnet20  # an architecture of its own, where the method allows it
state: state  # what must not be lost between rounds
"""


@dataclass(frozen=True)
class Project:
    """A deployment's folder."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Project:
        """An existing one."""
        project = cls(Path(path).resolve())
        if not project.server_file.is_file():
            raise BadInput(f"{path} is no deployment: it has no server.yaml; make one with: fedhead deploy init {path}")
        return project

    @classmethod
    def init(
        cls,
        path: str | Path,
        recipe: str,
        sites: Sequence[str],
        assignments: Sequence[str] = (),
        data: Sequence[str] = (),
        out: str | None = None,
    ) -> Project:
        """Write a ready project; a folder that holds anything is refused."""
        project = cls(Path(path).resolve())
        if project.path.exists() and any(project.path.iterdir()):
            raise BadInput(f"{path} is not empty: select a new folder")
        if data and len(data) != len(sites):
            raise BadInput(f"{len(data)} data sources for {len(sites)} sites: give one a site, or none")
        build.stages(load(recipe, [*assignments, f"clients={len(sites)}"]))  # refuses what is wrong with it now
        named = str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe
        project.path.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() else "-" for c in project.path.name.lower()).strip("-") or "federation"
        project.app.mkdir()
        (project.app / "pyproject.toml").write_text(_PYPROJECT.format(name=name, server=project.server_file))
        text = _SERVER.format(
            recipe=json.dumps(named),
            set=json.dumps(list(assignments)),
            sites=json.dumps(list(sites)),
            test="null" if data else RECIPE_DATA,
            quorum=max(1, (len(sites) + 1) // 2),
        )
        project.server_file.write_text(text if out is None else text.replace("out: run ", f"out: {json.dumps(out)} "))
        for place, site in enumerate(sites):
            folder = project.path / "sites" / site
            folder.mkdir(parents=True)
            source = data[place] if data else RECIPE_DATA
            given = str(Path(source).resolve()) if Path(source).exists() else source
            (folder / "site.yaml").write_text(_SITE.format(name=site, data=json.dumps(given)))
        project.server()  # what was written must be readable
        return project

    @property
    def server_file(self) -> Path:
        """The server's file."""
        return self.path / "server.yaml"

    @property
    def app(self) -> Path:
        """The folder that Flower bundles; it is apart from all else because a bundle goes to every site."""
        return self.path / "app"

    @property
    def private(self) -> Path:
        """Where `up` keeps its own files."""
        return self.path / ".deploy"

    @property
    def certs(self) -> Path:
        """Where certificates and keys are."""
        return self.path / "certs"

    def server(self) -> ServerFile:
        """What the server runs."""
        return ServerFile.read(self.server_file)

    def sites(self) -> dict[str, SiteFile]:
        """The sites whose files are here, in the server's order."""
        found = {name: self.path / "sites" / name / "site.yaml" for name in self.server().sites}
        return {name: SiteFile.read(path) for name, path in found.items() if path.is_file()}
