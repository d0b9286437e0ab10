"""Files of compose, Kubernetes and systemd: complete, consistent with each other, and without rights beyond need."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fedhead.cli import call
from fedhead.deploy import certificates, targets
from fedhead.deploy.processes import FLOWER
from fedhead.deploy.project import Project

SITES = ("north", "South.2")


def made(folder: Path, target: targets.Target) -> Project:
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "method.py").write_text(
        "from dataclasses import dataclass\nfrom fedhead.methods.fedavg import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
    )
    (folder / "recipe.yaml").write_text("dataset: digits\nmethod: mine/method.py:Mine\nrounds: 2\nsubset: 240\n")
    words = ["deploy", "init", str(folder / "clinic"), "--recipe", str(folder / "recipe.yaml"), "--target", target]
    assert call([*words, "--site", SITES[0], "--site", SITES[1], "--address", "fl.example.org:9443"]) == 0
    project = Project.open(folder / "clinic")
    certificates.write(project.certs, ["fl.example.org"], SITES)
    return project


def documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(path))


def places(project: Project) -> dict[Path, tuple[str, str]]:
    """The folders that are deployed, with their path on the machine and the folder that fedhead writes to."""
    sites = {project.path / "sites" / site: (f"/srv/fedhead/{site}", "state") for site in SITES}
    return {project.path: ("/srv/fedhead/clinic", "runs"), **sites}


def expected(folder: Path, home: str) -> dict[str, list[str]]:
    """The commands of a folder's processes."""
    values = {"folder": home, "site": folder.name, "address": "fl.example.org:9443"}
    names = ("node", "monitor") if (folder / "site.yaml").exists() else ("link", "proxy", "monitor")
    return {name: shlex.split(targets.COMMANDS[name].format_map(values)) for name in names}


def test_a_target_s_project_names_paths_of_the_machines_and_has_all_files(tmp_path: Path) -> None:
    project = made(tmp_path, "compose")
    assert 'server = "/srv/fedhead/clinic/server.yaml"' in (project.app / "pyproject.toml").read_text()
    for server in (project.server(), project.server().without(SITES[0])):
        assert server.at(server.out).parent == project.path / "runs"  # the folder that is written to
    assert project.server().recipe == "recipe.yaml"  # a copy: the server's machine has no other folder of the operator
    assert project.server().recipe_of_run().method == "mine/method.py:Mine"
    for folder, (_, written) in places(project).items():
        assert (folder / written).is_dir()
        assert (folder / "flwr").is_dir()
    assert 'root-certificates = "/srv/fedhead/clinic/certs/ca.crt"' in (project.path / "flwr/config.toml").read_text()
    nginx = (project.path / "nginx.conf").read_text()
    assert "listen 9443 ssl;" in nginx
    assert re.findall(r"location (\S+)", nginx) == ["/v1/fleet/", "/"]  # never /v1/control/
    link = expected(project.path, "")["link"]
    assert f"proxy_pass https://{link[link.index('--host') + 1]}:{link[link.index('--port') + 1]};" in nginx


def test_containers_of_compose_are_confined(tmp_path: Path) -> None:
    project = made(tmp_path, "compose")
    for folder, (home, written) in places(project).items():
        (compose,) = documents(folder / "compose.yaml")
        services = compose["services"]
        assert {name: service["command"] for name, service in services.items()} == expected(folder, home)
        for service in services.values():
            assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"])
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["working_dir"] == home
            assert service["environment"] == {"FLWR_HOME": f"{home}/flwr"}
            assert service["tmpfs"] == ["/tmp"]
            mounts = [f".:{home}:ro", f"./{written}:{home}/{written}", f"./flwr:{home}/flwr"]
            assert service["volumes"] == mounts
            assert "nginx" in service["image"] or (folder / service["build"]["context"] / "Containerfile").is_file()
        (owner,) = [name for name, service in services.items() if "ports" in service]
        assert {service.get("network_mode", f"service:{owner}") for service in services.values()} == {
            f"service:{owner}"
        }
        assert "127.0.0.1:9464:9464" in services[owner]["ports"]
    assert "9443:9443" in documents(project.path / "compose.yaml")[0]["services"]["proxy"]["ports"]


def test_the_image_is_not_root_s_and_checks_its_health(tmp_path: Path) -> None:
    text = (made(tmp_path, "kubernetes").path / "image" / "Containerfile").read_text()
    assert "\nUSER 10001:10001\n" in text
    health = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, flags=re.MULTILINE)[1])
    assert health == ["fedhead", "deploy", "health", ".", "--ready"]
    assert all(f"{name}={value}" in text for name, value in FLOWER.items())
    assert "COPY" not in text  # no key gets into an image
    assert f'ARG FEDHEAD="/image/fedhead-{version("fedhead")}-py3-none-any.whl[flower,parquet]"' in text
    assert "RUN --mount=type=bind,target=/image \\\n" in text


def test_manifests_of_kubernetes_are_confined_and_mount_what_they_name(tmp_path: Path) -> None:
    project = made(tmp_path, "kubernetes")
    for folder, (home, written) in places(project).items():
        found = {document["kind"]: document for document in documents(folder / "kubernetes.yaml")}
        (kustomization,) = documents(folder / "kustomization.yaml")
        pod = found["Deployment"]["spec"]["template"]["spec"]
        name = found["Deployment"]["metadata"]["name"]
        assert re.fullmatch("[a-z0-9-]+", name)
        assert pod["securityContext"]["runAsNonRoot"] is True
        containers = {container["name"]: container for container in pod["containers"]}
        assert {key: container["command"] for key, container in containers.items()} == expected(folder, home)
        for container in containers.values():
            safe = container["securityContext"]
            assert safe["readOnlyRootFilesystem"] is True
            assert safe["allowPrivilegeEscalation"] is False
            assert safe["capabilities"] == {"drop": ["ALL"]}
        main = containers.get("link") or containers["node"]
        assert main["livenessProbe"]["exec"]["command"] == ["fedhead", "deploy", "health", "."]
        assert main["readinessProbe"]["exec"]["command"] == ["fedhead", "deploy", "health", ".", "--ready"]
        mounts = {mount["mountPath"]: mount for mount in main["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if mount["name"] in ("tmp", "state")}
        assert writable == {"/tmp", f"{home}/{written}", f"{home}/flwr"}
        # every file of the config map exists, and is mounted where it lies in the folder
        config, secret = kustomization["configMapGenerator"][0], kustomization["secretGenerator"][0]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert config["name"] == volumes["config"]["configMap"]["name"] == name
        assert secret["name"] == volumes["certs"]["secret"]["secretName"] == name
        assert found["PersistentVolumeClaim"]["metadata"]["name"] == name
        keys = {entry.rpartition("=")[0] or Path(entry).name: entry.rpartition("=")[2] for entry in config["files"]}
        mounted = [m for container in containers.values() for m in container["volumeMounts"] if m["name"] == "config"]
        assert {mount["mountPath"] for mount in mounted} == {f"{home}/{place}" for place in keys.values()}
        assert all(mount["mountPath"] == f"{home}/{keys[mount['subPath']]}" for mount in mounted)
        assert all((folder / place).is_file() for place in keys.values())
        assert f"{home}/mine/method.py" in mounts
    own = [
        item["path"]
        for item in documents(project.path / "kubernetes.yaml")[0]["spec"]["template"]["spec"]["volumes"][2]["secret"][
            "items"
        ]
    ]
    assert own == ["ca.crt", "server.crt", "server.key", "sites/north.pub", "sites/South.2.pub"]  # no other key
    (server,) = documents(project.path / "kustomization.yaml")
    assert all((project.path / file).is_file() for file in server["secretGenerator"][0]["files"])
    (service,) = [entry for entry in documents(project.path / "kubernetes.yaml") if entry["kind"] == "Service"]
    assert service["spec"]["ports"] == [{"port": 9443}]


@pytest.mark.slow
def test_units_of_systemd_are_confined_and_use_options_that_there_are(tmp_path: Path) -> None:
    project = made(tmp_path, "systemd")
    helps: dict[str, str] = {}
    for folder, (home, written) in places(project).items():
        commands = expected(folder, home)
        units = sorted((folder / "systemd").iterdir())
        assert len(units) == len(commands)
        for path in units:
            assert path.read_text().startswith(f"# /etc/systemd/system/{path.name}")
            unit = ConfigParser(interpolation=None, strict=False)
            unit.optionxform = str  # type: ignore[assignment,method-assign]
            unit.read_string(path.read_text())
            service = unit["Service"]
            name = path.stem.removeprefix("fedhead-").replace("site", "node")
            program, *options = shlex.split(service["ExecStart"])
            assert [Path(program).name, *options] == commands[name]
            assert (service["User"], service["WorkingDirectory"], service["Restart"]) == ("fedhead", home, "always")
            assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", "true")
            if name in ("link", "node"):
                assert service["ReadWritePaths"].split() == [f"{home}/{written}", f"{home}/flwr"]
                program = "flower-supernode" if name == "node" else program  # the node takes the options of both
                here = Path(sys.executable).with_name(Path(program).name)  # the environment need not be on PATH
                if here.name not in helps:
                    done = subprocess.run([here, "--help"], capture_output=True, text=True, check=True)
                    helps[here.name] = done.stdout
                assert all(option in helps[here.name] for option in options if option.startswith("--"))
            if shutil.which("systemd-analyze"):
                text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", path.read_text()).replace(home, "/tmp")
                (tmp_path / path.name).write_text(text)
                command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
                assert path.name not in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_an_address_without_a_port_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "init", str(tmp_path / "clinic"), "--target", "compose", "--address", "https://fl.example.org"]
    assert call(words) == 2
    assert "the server's name and port" in capsys.readouterr().err
    assert not (tmp_path / "clinic").exists()  # so that the command can be repeated


def test_sites_with_one_name_in_kubernetes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "init", str(tmp_path / "clinic"), "--site", "a.b", "--site", "a-b", "--target"]
    assert call([*words, "kubernetes"]) == 2
    assert "sites a.b and a-b have one name in Kubernetes, fedhead-a-b: rename one" in capsys.readouterr().err
    assert not (tmp_path / "clinic").exists()
    assert call([*words, "compose"]) == 0


def test_data_of_a_target_are_at_the_site_s_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "north.npz"
    own.write_bytes(b"")
    words = ["deploy", "init", str(tmp_path / "clinic"), "--site", "north", "--target", "compose", "--data"]
    assert call([*words, "north.npz"]) == 2
    assert "give the path at the site's machine, such as /data/north.npz" in capsys.readouterr().err
    assert not (tmp_path / "clinic").exists()
    assert call([*words, str(own)]) == 0
    assert Project.open(tmp_path / "clinic").sites()["north"].data == str(own)
