"""Folder of a deployment, written by `fedhead deploy init`.

app/                  the bundle of `flwr run`, sent to every site: only a pyproject.toml
server.yaml           config of the server: recipe and sites
sites/NAME/site.yaml  config of a site; the folder is copied to the site's machine
certs/                certificates and keys of `fedhead deploy certs`
.deploy/              logs and database of `fedhead deploy up`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fedhead.algorithm.upload import UPLOADS
from fedhead.core.components.parameters import from_mapping
from fedhead.core.system.errors import BadInput
from fedhead.data.inputs.table_schema import TableSchema
from fedhead.flower.config import RECIPE_DATA, ServerFile, SiteFile, refuse_other_clients
from fedhead.recipes import components
from fedhead.recipes.experiment import algorithms, build_experiment
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.recipe_data import is_path

SCHEMA = "schema.yaml"  # schema of the sites' tables
# forms of `data` in site.yaml, without and with a schema
SAMPLES = "a folder of class folders, an .npz (x, y), a .csv (path,label), file.py:function; recipe: its share"
TABLES = "a table (.csv, .parquet), a list or a folder of them, or file.py:function, which returns a data frame"


@dataclass(frozen=True)
class Project:
    """Folder of a deployment."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Project:
        """Open an existing project.

        Raises:
            BadInput: If the folder is not a deployment.
        """
        project = cls(Path(path).resolve())
        if not project.server_file.is_file():
            raise BadInput(f"{path} is not a deployment: it has no server.yaml; try fedhead deploy init {path}")
        return project

    @classmethod
    def init(
        cls,
        path: str | Path,
        recipe: str,
        sites: Sequence[str],
        assignments: Sequence[str] = (),
        data: Sequence[str] = (),
        schema: str | Path | None = None,
        here: bool = True,
    ) -> Project:
        """Create a project.

        A recipe file is copied beside server.yaml; the user's own files that it names (`method: file.py:Name`) also
        beside each site.yaml. Each site.yaml lists these files, and modules of installed packages, under `allow`.

        Args:
            path: Folder; it must be empty or not exist.
            recipe: Recipe name or file.
            sites: Names of the sites.
            assignments: `key=value` overrides of the recipe.
            data: One data source per site, or none to use the recipe's data set.
            schema: Schema of the sites' tables, which is copied beside server.yaml and each site.yaml.
            here: Whether the paths of `data` are on this machine; else they are those at the sites' machines.

        Raises:
            BadInput: If the folder is not empty, or the recipe or a site's name is invalid.
        """
        project = cls(Path(path).resolve())
        if project.path.exists() and any(project.path.iterdir()):
            raise BadInput(f"{path} is not empty: give a new folder")
        if len(set(sites)) < len(sites):
            raise BadInput(f"sites {', '.join(sites)}: a name is given twice; give each site its own")
        if data and len(data) != len(sites):
            raise BadInput(f"{len(data)} data sources for {len(sites)} sites: give one per site, or none")
        if schema is not None:
            TableSchema.read(schema)  # fail now if it is invalid
            if not data:
                raise BadInput("schema: it describes the sites' tables: give the file of each site with --data")
        from_mapping(ServerFile, {"recipe": recipe, "sites": list(sites)}, path=project.server_file)  # checks the names
        refuse_other_clients(assignments, sites)
        loaded = load(recipe, [*assignments, f"clients={len(sites)}"])
        # Fail now if the recipe is invalid; the sites' input shapes are not known yet.
        algorithms(loaded) if data else build_experiment(loaded)
        own_files, modules = _own_code(loaded)
        project.app.mkdir(parents=True)
        name = "".join(c if c.isalnum() else "-" for c in project.path.name.lower()).strip("-") or "federation"
        (project.app / "pyproject.toml").write_text(filled("pyproject.toml", name=name, server=project.server_file))
        if Path(recipe).is_file():
            recipe = Path(shutil.copy(recipe, project.path)).name
        text = filled(
            "server.yaml",
            recipe=json.dumps(recipe),
            set=json.dumps(list(assignments)),
            sites=json.dumps(list(sites)),
            schema="null" if schema is None else SCHEMA,
            test="null" if data else RECIPE_DATA,
            quorum=max(1, (len(sites) + 1) // 2),
        )
        project.server_file.write_text(text, encoding="utf-8")
        paths = [str(Path(str(loaded.dataset)).resolve())] if not data and is_path(loaded.dataset) else []
        for site, source in zip(sites, data or [RECIPE_DATA] * len(sites), strict=True):
            folder = project.path / "sites" / site
            text = filled(
                "site.yaml",
                name=site,
                data=json.dumps(os.path.relpath(source, folder) if here and Path(source).exists() else source),
                forms=SAMPLES if schema is None else TABLES,
                schema="null" if schema is None else SCHEMA,
                allow=json.dumps([*own_files, *modules]),
                paths=json.dumps(paths),
                public="# " if data or paths else "",
                secure="" if (UPLOADS, "secure_sum") in components.named(loaded) else "# ",
            )
            folder.mkdir(parents=True)
            (folder / "site.yaml").write_text(text, encoding="utf-8")
        if schema is not None:
            own_files = {**own_files, SCHEMA: str(schema)}
        for where, file in own_files.items():
            for folder in (project.path, *(project.path / "sites" / site for site in sites)):
                (folder / where).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, folder / where)
        project.server()  # check that it can be read
        return project

    @property
    def server_file(self) -> Path:
        """Path of server.yaml."""
        return self.path / "server.yaml"

    @property
    def app(self) -> Path:
        """Folder that Flower sends to every site, so it contains no config and no keys."""
        return self.path / "app"

    @property
    def private(self) -> Path:
        """Folder of the files that `up` writes."""
        return self.path / ".deploy"

    @property
    def certs(self) -> Path:
        """Folder of certificates and keys."""
        return self.path / "certs"

    def server(self) -> ServerFile:
        """Read server.yaml."""
        return ServerFile.read(self.server_file)

    def sites(self) -> dict[str, SiteFile]:
        """Read the site files in this folder, in the server's order."""
        files = {name: self.path / "sites" / name / "site.yaml" for name in self.server().sites}
        return {name: SiteFile.read(path) for name, path in files.items() if path.is_file()}


def filled(template: str, **values: object) -> str:
    """Return the text of a template with its fields filled."""
    return (files("fedhead.deploy") / "templates" / f"{template}.template").read_text("utf-8").format(**values)


def _own_code(recipe: Recipe) -> tuple[dict[str, str], list[str]]:
    """Return the user's files by their paths in the recipe, and the modules of installed packages."""
    files: dict[str, str] = {}
    modules: list[str] = []
    for entry in components.sources(recipe):
        where = entry["name"].rpartition(":")[0]
        if "file" not in entry:
            continue
        if not where.endswith(".py"):
            modules.append(entry["module"])
        elif Path(where).is_absolute() or ".." in Path(where).parts:
            raise BadInput(
                f"{entry['name']}: a deployment copies the file to every site, so its path must be relative, beside "
                "the recipe or in the working directory"
            )
        else:
            files[where] = entry["file"]
    return files, list(dict.fromkeys(modules))
