"""The SuperLink of a federation on this machine: its process, its health, and commands to it."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedhead.core.system.errors import FedheadError
from fedhead.deploy import processes
from fedhead.deploy.project import Project

READY_SECONDS = 90.0


@dataclass
class SuperLink:
    """Starts a SuperLink and talks to it.

    Args:
        project: Folder of the deployment.
        port: Where it listens.
        secure: Whether to use TLS and authenticated nodes.
        env: Environment of its process and of `flwr` commands.
    """

    project: Project
    port: int
    secure: bool
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process; `wait_until_ready` returns when it answers."""
        self._write_connection()
        private, certs = self.project.private, self.project.certs
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(private / "link.db")]  # without one, all nodes leave when the link ends
        if self.secure:
            command += ["--ssl-certfile", str(certs / "server.crt"), "--ssl-keyfile", str(certs / "server.key")]
            command += ["--ssl-ca-certfile", str(certs / "ca.crt"), "--enable-supernode-auth"]
        else:
            command += ["--insecure"]
        self.process = processes.start(command, private / "link.log", self.env, self.project.path)

    def _write_connection(self) -> None:
        """Write the configuration with which `flwr` finds this SuperLink."""
        trust = f'root-certificates = "{self.project.certs / "ca.crt"}"' if self.secure else "insecure = true"
        home = self.project.private / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        text = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(text, encoding="utf-8")

    def wait_until_ready(self) -> None:
        """Wait until the SuperLink answers.

        Raises:
            FedheadError: If it ends, or does not answer in time.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not self.healthy():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise FedheadError(f"the SuperLink did not start: see {self.project.private / 'link.log'}")
            time.sleep(0.1)

    def healthy(self) -> bool:
        """Return whether the SuperLink answers."""
        context = ssl.create_default_context(cafile=str(self.project.certs / "ca.crt")) if self.secure else None
        address = f"{'https' if self.secure else 'http'}://{self.address}/health"
        try:
            with urllib.request.urlopen(address, timeout=2, context=context) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def submit(self, resume: bool) -> str:
        """Hand the project's run to the SuperLink.

        Args:
            resume: Whether to continue an interrupted run.

        Returns:
            The run's id.

        Raises:
            FedheadError: If Flower refuses it.
        """
        config = f'server="{self.project.server_file}" resume={_toml(resume)} insecure={_toml(not self.secure)}'
        found = self.flwr("run", str(self.project.app), "--run-config", config, "--format", "json")
        run_id = str(found.get("run-id", found.get("run_id", "")))
        if not found.get("success") or not run_id:
            raise FedheadError(f"Flower refused the run: {found.get('error-message', found)}")
        return run_id

    def flwr(self, *words: str) -> dict[str, Any]:
        """Run a `flwr` command against this SuperLink.

        Args:
            *words: The command's arguments.

        Returns:
            Its JSON output, or an empty dictionary.

        Raises:
            FedheadError: If the command fails.
        """
        done = subprocess.run(
            ["flwr", *words],
            env=self.env,
            cwd=self.project.path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        file = self.project.private / "flwr.log"
        with file.open("a", encoding="utf-8") as log:
            log.write(f"$ flwr {' '.join(words)}\n{done.stdout}{done.stderr}\n")
        if done.returncode != 0:
            tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise FedheadError(f"flwr {' '.join(words[:2])} failed: {' '.join(tail)}; see {file}")
        begin = done.stdout.find("{")
        return json.loads(done.stdout[begin:]) if begin >= 0 else {}


def _toml(value: bool) -> str:
    return "true" if value else "false"
