"""The pages for operators: their blocks are run with real processes, tables are compared with the code."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployments import MARK, end_marked

from fedhead.deploy import processes, targets
from fedhead.flower.wire import site_errors
from fedhead.runs.run_folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operating.md").read_text(encoding="utf-8")
FAILURES = (DOCS / "failures.md").read_text(encoding="utf-8")
SITES = ("north", "south")


def blocks(language: str, section: str = "") -> list[str]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else PAGE
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_every_code_of_a_problem_is_explained() -> None:
    table = FAILURES.split("\n## Codes of a site\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \| \S.* \| \S.* \|$", table, flags=re.MULTILINE) == list(site_errors.TEXTS)


def test_every_line_of_the_server_s_log_is_one_that_the_code_has() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("flower", "engine", "stages", "methods")
        for path in (Path(__file__).parents[2] / "src" / "fedhead" / folder).rglob("*.py")
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # texts over several lines
    table = FAILURES.split("\n## Messages of the server\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE)
    texts = [text for row in rows for text in re.findall("`(.*?)`", row)]
    assert len(texts) > 15
    for text in texts:
        assert text in joined, text


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    found: dict[str, subprocess.Popen[bytes]] = {}
    yield found
    end_marked(tmp_path)
    for process in found.values():
        process.wait()


@pytest.mark.deploy
@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_keys_certificates_and_the_database_are_replaced(
    tmp_path: Path, started: dict[str, subprocess.Popen[bytes]]
) -> None:
    """A link with a copy of its database and a new certificate admits the old node, and the new key of the other."""
    env = processes.environment(tmp_path / "clinic" / "flwr", **{MARK: str(tmp_path)})
    port, *node_ports = processes.free_ports(3)

    def shell(block: str) -> str:
        done = subprocess.run(["bash", "-euc", block], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(name: str, command: str, folder: str = ".") -> None:
        words = ["bash", "-euc", f"exec {command}"]
        started[name] = processes.start(words, tmp_path / f"{name}.log", env, tmp_path / folder)

    def stop(name: str) -> None:
        started[name].terminate()
        started[name].wait(60)

    def start_link() -> None:
        start("link", targets.COMMANDS["link"].replace("--port 8000", f"--port {port}"), "clinic")
        deadline = time.monotonic() + 120
        asked = ["bash", "-c", "flwr supernode list"]
        while subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, (tmp_path / "link.log").read_text()
            time.sleep(0.5)

    words = "rounds=1 subset=120 --site north --site south"
    shell(f"fedhead deploy init clinic {words}; fedhead deploy certs clinic --host 127.0.0.1; mkdir -p clinic/flwr")
    (tmp_path / "clinic" / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "clinic"\n\n[superlink.clinic]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{tmp_path}/clinic/certs/ca.crt"\n'
    )
    start_link()
    shell("for site in north south; do flwr supernode register clinic/certs/sites/$site.pub; done")
    backup, restore = blocks("sh", "Backup and restore")
    shell(backup)
    stop("link")
    before = (tmp_path / "clinic" / "certs" / "server.crt").read_bytes()
    shell(restore)
    shell(blocks("sh", "Certificates")[0])
    assert (tmp_path / "clinic" / "certs" / "server.crt").read_bytes() != before
    start_link()
    rotate, remove = blocks("sh", "Keys of sites")
    shell(rotate)
    stop("link")
    start_link()
    for site, node_port in zip(SITES, node_ports, strict=True):
        start(
            site,
            f"python -m fedhead.flower.node --superlink 127.0.0.1:{port} --port {node_port} "
            "--root-certificates clinic/certs/ca.crt "
            f"--auth-supernode-private-key clinic/certs/sites/{site} "
            f"--node-config 'site=\"{tmp_path}/clinic/sites/{site}/site.yaml\"'",
        )
    shell("flwr run clinic/app --stream")
    row = RunFolder.open(tmp_path / "clinic" / "run").metrics()[0]
    assert row["participants"] == 2
    shell(remove)
    assert shell("flwr supernode list").count("online") == 2
