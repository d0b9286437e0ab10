"""Files that start a deployment on its machines, by compose, Kubernetes or systemd.

All targets run the same commands in the same folders: /srv/fedhead/PROJECT at the server, /srv/fedhead/SITE at a site.
There they write only to `runs` or `state`, and to `flwr`, which holds Flower's own files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from fedhead.core.system.errors import BadInput
from fedhead.core.system.version import VERSION
from fedhead.deploy.health import METRICS_PORT
from fedhead.deploy.processes import FLOWER
from fedhead.deploy.project import Project, filled
from fedhead.flower.config import RECIPE_DATA

Target = Literal["compose", "kubernetes", "systemd"]
HOME, USER, NGINX = "/srv/fedhead", 10001, "docker.io/nginxinc/nginx-unprivileged:1.28-alpine"
COMMANDS = {
    "link": "flower-superlink --host 127.0.0.1 --port 8000 --database flwr/link.db --enable-supernode-auth "
    "--ssl-certfile certs/server.crt --ssl-keyfile certs/server.key --ssl-ca-certfile certs/ca.crt",
    "proxy": "nginx -c {folder}/nginx.conf -g 'daemon off;'",
    "node": "python -m fedhead.flower.node --superlink {address} --root-certificates ca.crt "
    "--auth-supernode-private-key {site} --node-config 'site=\"{folder}/site.yaml\"'",
    "monitor": f"fedhead deploy health . --host 0.0.0.0 --port {METRICS_PORT}",
}
# Files of the server and of a site, with their templates. Containers need image/Containerfile besides.
_SERVER = {
    "compose": {"compose.yaml": "compose-server.yaml"},
    "kubernetes": {"kubernetes.yaml": "kubernetes-server.yaml", "kustomization.yaml": "kustomization-server.yaml"},
    "systemd": {f"systemd/fedhead-{unit}.service": f"{unit}.service" for unit in ("link", "proxy", "monitor")},
}
_SITE = {
    "compose": {"compose.yaml": "compose-site.yaml"},
    "kubernetes": {"kubernetes.yaml": "kubernetes-site.yaml", "kustomization.yaml": "kustomization-site.yaml"},
    "systemd": {f"systemd/fedhead-{unit}.service": f"{unit}.service" for unit in ("site", "monitor")},
}


def check(target: Target, sites: Sequence[str], data: Sequence[str]) -> None:
    """Check the paths of data at the sites' machines, and the sites' names.

    No two sites may have the same name in Kubernetes, which knows only letters, digits and '-'.
    """
    for source in data:
        if source != RECIPE_DATA and ":" not in source and not Path(source).is_absolute():
            raise BadInput(
                f"--data {source}: with --target {target} give the path at the site's machine, such as /data/{source}"
            )
    apps = [_app(site) for site in sites]
    if target == "kubernetes" and (same := [site for site in sites if apps.count(_app(site)) > 1]):
        raise BadInput(f"sites {' and '.join(same)} have one name in Kubernetes, {_app(same[0])}: rename one")


def write(project: Project, target: Target, address: str) -> list[Path]:
    """Write the files of a target beside server.yaml and each site.yaml, and the folders that are written to.

    Args:
        project: New project.
        target: Tool that starts the processes.
        address: Host and port at which sites reach the server.

    Returns:
        The files written.
    """
    name, sites = project.path.name, project.server().sites
    values = {
        "name": name,
        "address": address,
        "port": address.rpartition(":")[2],
        "version": VERSION,
        "torch": version("torch").partition("+")[0],
        "flwr": version("flwr"),
        "variables": " ".join(f"{variable}={value}" for variable, value in FLOWER.items()),
        "bin": f"{HOME}/venv/bin",
        "user": str(USER),
        "metrics": str(METRICS_PORT),
        "nginx": NGINX,
    }
    image = {} if target == "systemd" else {"image/Containerfile": "Containerfile"}
    keys = [f"sites/{site}.pub" for site in sites]
    server = {
        "folder": f"{HOME}/{name}",
        "state": "runs",
        "keys": "\n".join(f"      - certs/{key}" for key in keys),
        "items": "\n".join(
            f"              - key: {Path(key).name}\n                path: {key}"
            for key in ("ca.crt", "server.crt", "server.key", *keys)
        ),
    }
    modules = [path for path in project.path.rglob("*.py") if project.path / "sites" not in path.parents]
    templates = {**_SERVER[target], **image, "nginx.conf": "nginx.conf", "flwr/config.toml": "config.toml"}
    written = _write(project.path, templates, [*project.path.glob("*.yaml"), *modules], values | server)
    file = project.server_file
    file.write_text(file.read_text("utf-8").replace("\nout: run ", "\nout: runs/run "), encoding="utf-8")
    bundle = project.app / "pyproject.toml"
    text = bundle.read_text(encoding="utf-8").replace(str(project.server_file), f"{HOME}/{name}/server.yaml")
    bundle.write_text(text, encoding="utf-8")
    for site in sites:
        folder = project.path / "sites" / site
        here = {"site": site, "folder": f"{HOME}/{site}", "state": "state", "app": _app(site)}
        files = [*folder.glob("*.yaml"), *folder.rglob("*.py")]
        written += _write(folder, {**_SITE[target], **image}, files, values | here)
    return written


def _app(site: str) -> str:
    """Return the name of a site in Kubernetes."""
    return "fedhead-" + re.sub(r"[^a-z0-9]+", "-", site.lower()).strip("-")


def _write(folder: Path, templates: Mapping[str, str], files: list[Path], values: Mapping[str, str]) -> list[Path]:
    """Write files from templates; `files` of the folder go to the config map in Kubernetes."""
    commands = {name: text.format_map({"site": "", **values}) for name, text in COMMANDS.items()}
    if not any(template.endswith(".service") for template in templates.values()):
        commands = {name: json.dumps(shlex.split(text)) for name, text in commands.items()}
    places = {path.relative_to(folder).as_posix(): path for path in files}
    config = {place: place.replace("/", "-") for place in places}  # keys of a config map have no slashes
    values = {
        **values,
        **commands,
        "files": "\n".join(f"      - {key}={place}" for place, key in config.items()),
        "mounts": "\n".join(
            f"            - name: config\n              mountPath: {values['folder']}/{place}\n"
            f"              subPath: {key}"
            for place, key in config.items()
        ),
    }
    for place in ("flwr", values["state"]):
        (folder / place).mkdir(exist_ok=True)
    written = [folder / place for place in templates]
    for path, template in zip(written, templates.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(template, **values), encoding="utf-8")
    return written
