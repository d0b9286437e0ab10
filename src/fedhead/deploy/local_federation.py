"""A federation on one machine: a SuperLink, one SuperNode per site, and one run."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.deploy import certificates, processes
from fedhead.deploy.health import flower_fault
from fedhead.deploy.project import Project
from fedhead.deploy.registration import register
from fedhead.flower.server import server_status
from fedhead.flower.server.server_status import ServerStatus
from fedhead.runs.run_folder_schema import CROSS_SITE, RESULT

LINK_SECONDS = 90.0  # time limit for the SuperLink to answer
SERVER_SECONDS = 240.0  # time limit for the run's server to start


@dataclass
class LocalFederation:
    """Local processes of a deployment, from start to end of one run.

    The site of a node that ends is absent from then on. If the SuperLink or the run's server ends early, the run fails;
    a new `LocalFederation` of the same project continues it with `resume=True`.

    Args:
        project: Folder of the deployment.
        secure: Use TLS and authenticated nodes.
        resume: Continue an interrupted run.
        evaluate: Test the models of the finished run at every site, instead of a run.
        leave_out_site: Site that only tests; None: all sites train.
        log: Called with each progress message and each line of the server's log.
    """

    project: Project
    secure: bool = False
    resume: bool = False
    evaluate: bool = False
    leave_out_site: str | None = None
    log: Callable[[str], None] = print
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)  # by site
    link: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        processes.require_flower()
        self.private = self.project.private
        self.sites = self.project.sites()
        if not self.sites:
            raise FedheadError(f"{self.project.path} has no site.yaml for any of its sites")
        if self.secure:
            certificates.check(self.project.certs, list(self.sites))
        self.private.mkdir(parents=True, exist_ok=True)
        link_port, *node_ports = processes.free_ports(1 + len(self.sites))
        self._node_ports, self._ended = dict(zip(self.sites, node_ports, strict=True)), set[str]()
        self.address = f"127.0.0.1:{link_port}"
        file = self.project.server().without(self.leave_out_site)
        self._result = file.at(file.out) / (CROSS_SITE if self.evaluate else RESULT)
        self._again = "" if self.evaluate else "; go on with --resume"
        self._status, server_log = self.private / "server.json", self.private / "server.log"
        self._lock = (self.private / "lock").open("w")
        self._server_log = server_log.open("a+", encoding="utf-8")  # reading starts after the lines of earlier runs
        variables = {server_status.VARIABLE: str(self._status), "FEDHEAD_SERVER_LOG": str(server_log)}
        self.env = processes.environment(self.private / "flwr", **variables)

    def run(self) -> None:
        """Start all processes, wait until the run has ended, and stop all processes.

        Raises:
            BadInput: If another process runs this deployment.
            FedheadError: If something does not start, or the run failed.
        """
        try:
            self.up()
            self.watch()
        finally:
            self.close()

    # -- starting ---------------------------------------------------------------------------------
    def up(self) -> None:
        """Start the processes and submit the run.

        Raises:
            BadInput: If another process runs this deployment.
            FedheadError: If something does not start.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"{self.project.path} is up already, in another process: end that one first") from error
        self._status.unlink(missing_ok=True)
        if self.evaluate:
            self._result.unlink(missing_ok=True)
        self._start_link()
        self.log(f"the nodes of {', '.join(self.sites)} and the run are starting: this takes about a minute")
        if self.secure:
            keys = {name: self.project.certs / "sites" / f"{name}.pub" for name in self.sites}
            register(self.address, self.project.certs / "ca.crt", keys)
        self.nodes = {site: self._start_node(site) for site in self.sites}
        self._submit()

    def _start_link(self) -> None:
        certs, host, _, port = self.project.certs, *self.address.partition(":")
        trust = f'root-certificates = "{certs / "ca.crt"}"' if self.secure else "insecure = true"
        home = self.private / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        text = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(text, encoding="utf-8")
        command = ["flower-superlink", "--host", host, "--port", port, "--database", str(self.private / "link.db")]
        if self.secure:
            command += ["--ssl-certfile", str(certs / "server.crt"), "--ssl-keyfile", str(certs / "server.key")]
            command += ["--ssl-ca-certfile", str(certs / "ca.crt"), "--enable-supernode-auth"]
        else:
            command += ["--insecure"]
        self.link = processes.start(command, self.private / "link.log", self.env, self.project.path)
        deadline = time.monotonic() + LINK_SECONDS
        while not self._link_answers():
            if self.link.poll() is not None or time.monotonic() > deadline:
                raise FedheadError(f"the SuperLink did not start: see {self.private / 'link.log'}")
            time.sleep(0.1)
        self.log(f"SuperLink is ready on {self.address}")

    def _link_answers(self) -> bool:
        address = f"{'https' if self.secure else 'http'}://{self.address}"
        return flower_fault(address, self.project.certs / "ca.crt") is None

    def _start_node(self, site: str) -> subprocess.Popen[bytes]:
        file, certs, port = self.sites[site].path, self.project.certs, self._node_ports[site]
        command = [sys.executable, "-m", "fedhead.flower.node", "--superlink", self.address, "--port", str(port)]
        command += ["--node-config", f'site="{file}"']
        if self.secure:
            command += ["--root-certificates", str(certs / "ca.crt")]
            command += ["--auth-supernode-private-key", str(certs / "sites" / site)]
        else:
            command += ["--insecure"]
        return processes.start(command, self.private / f"site-{site}.log", self.env, file.parent)

    def _submit(self) -> None:
        """Hand the run to the SuperLink by Flower's own command."""
        values = {"server": str(self.project.server_file), "insecure": not self.secure}
        values |= {"resume": self.resume, "evaluate": self.evaluate, "leave_out_site": self.leave_out_site or ""}
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        completed = subprocess.run(
            ["flwr", "run", str(self.project.app), "--run-config", config, "--format", "json"],
            env=self.env,
            cwd=self.project.path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        log = self.private / "flwr.log"
        log.write_text(completed.stdout + completed.stderr, encoding="utf-8")
        reply = json.loads(completed.stdout[completed.stdout.find("{") :] or "{}") if completed.returncode == 0 else {}
        if not reply.get("success"):
            raise FedheadError(f"Flower refused the run: {reply.get('error-message', '')} (see {log})")
        self._server_deadline = time.monotonic() + SERVER_SECONDS
        self.log(f"run {reply.get('run-id')} has begun")

    # -- waiting ----------------------------------------------------------------------------------
    def watch(self) -> None:
        """Wait until the run has ended.

        Raises:
            FedheadError: With the server's reason, if the run failed.
        """
        while not self._result.exists():
            self._follow_log()
            self._check_nodes()
            self._check_running()
            time.sleep(0.3)
        self._follow_log()

    def _follow_log(self) -> None:
        for line in self._server_log:
            self.log(line.rstrip("\n"))

    def _check_nodes(self) -> None:
        for site, process in self.nodes.items():
            if process.poll() is not None and site not in self._ended:
                self._ended.add(site)
                log = self.private / f"site-{site}.log"
                self.log(f"the node of {site} has ended with code {process.returncode}: its site is absent (see {log})")

    def _check_running(self) -> None:
        if self.link is not None and self.link.poll() is not None:
            raise FedheadError(
                f"the SuperLink has ended with code {self.link.returncode}: see {self.private / 'link.log'}"
                f"{self._again}"
            )
        status = ServerStatus.read(self._status)
        if status is None:
            failure = "the run's server did not start" if time.monotonic() > self._server_deadline else None
        else:
            failure = None if status.process.alive() else "the run's server has ended without a result"
            failure = status.failure or failure
        if failure is not None and not self._result.exists():
            raise FedheadError(f"{failure} (logs: {self.private}){self._again}")

    def close(self) -> None:
        """Stop all processes that this object started."""
        processes.stop(list(self.nodes.values()))  # first, so that nodes can unregister from the SuperLink
        if self.link is not None:
            processes.stop([self.link])
            status, deadline = ServerStatus.read(self._status), time.monotonic() + 10.0
            while status is not None and status.process.alive() and time.monotonic() < deadline:
                time.sleep(0.1)  # wait for the server to exit and unlock the run folder
        self.nodes, self.link = {}, None
        self._lock.close()
        self._server_log.close()
