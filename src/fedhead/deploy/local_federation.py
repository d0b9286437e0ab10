"""A federation on one machine: a SuperLink, one SuperNode per site, and the run, supervised until it ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import FedheadError
from fedhead.core.system.process import ProcessIdentity
from fedhead.deploy import certificates, lock, processes
from fedhead.deploy.project import Project
from fedhead.deploy.registration import register
from fedhead.deploy.superlink import SuperLink
from fedhead.flower.server import server_status
from fedhead.flower.server.server_status import ServerStatus
from fedhead.runs.run_folder import CHECKPOINT, RESULT

RESTART_SECONDS = 5.0  # before a failed node is restarted: Flower keeps it registered for a minute
ASK_SECONDS = 20.0  # without a server process, before Flower is asked whether the run still exists
MAX_RESUMES = 5  # how often a run that makes no progress is resumed automatically


@dataclass
class Node:
    """The SuperNode of a site."""

    site: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    next_start: float = 0.0


@dataclass
class LocalFederation:
    """Starts and supervises the processes; `close` ends everything it started.

    Args:
        project: Folder of the deployment.
        secure: Whether to use TLS and authenticated nodes.
        resume: Whether to continue an interrupted run.
        log: Called with each progress message.
    """

    project: Project
    secure: bool = False
    resume: bool = False
    log: Callable[[str], None] = print
    nodes: list[Node] = field(default_factory=list)
    run_id: str | None = None
    status: str = "starting"
    resumes: int = 0  # how often the run was resumed in total …
    resumes_without_progress: int = 0  # … and since its last round

    def __post_init__(self) -> None:
        self._claimed = False
        self._resumed_at = 0  # the checkpoint's time when the run was last resumed
        self._server_seen = time.monotonic()  # when the server last had a process
        self.private = self.project.private
        self.private.mkdir(parents=True, exist_ok=True)
        self.sites = self.project.sites()
        self.out = self.project.server().at(self.project.server().out)
        if not self.sites:
            raise FedheadError(f"{self.project.path} has no site.yaml for any of its sites")
        if self.secure:
            certificates.check(self.project.certs, list(self.sites))
        link_port, *ports = processes.free_ports(1 + len(self.sites))
        self.nodes = [Node(name, port) for name, port in zip(self.sites, ports, strict=True)]
        self.env = processes.environment(
            self.private / "flwr",
            FEDHEAD_SERVER_LOG=str(self.private / "server.log"),
            **{server_status.VARIABLE: str(self.private / lock.SERVER), processes.MARK: str(self.private)},
        )
        self.link = SuperLink(self.project, link_port, self.secure, self.env)

    # -- starting ---------------------------------------------------------------------------------
    def up(self) -> None:
        """Start everything; when this returns, the run has been handed to the link.

        Raises:
            BadInput: If another process watches over this deployment.
            FedheadError: If something does not start.
        """
        lock.claim(self.project)
        self._claimed = True
        self._start_link()
        if self.secure:
            keys = {name: self.project.certs / "sites" / f"{name}.pub" for name in self.sites}
            register(self.link.address, self.project.certs / "ca.crt", keys)
        for node in self.nodes:
            self._start_node(node)
        self._submit(self.resume)

    def _start_link(self) -> None:
        self.link.launch()
        self.save()
        self.link.wait_until_ready()
        self.log(f"SuperLink is ready on {self.link.address}")

    def _start_node(self, node: Node) -> None:
        command = ["flower-supernode", "--superlink", self.link.address, "--port", str(node.port)]
        command += ["--node-config", f'site="{self.sites[node.site].path}"']
        if self.secure:
            command += ["--root-certificates", str(self.project.certs / "ca.crt")]
            command += ["--auth-supernode-private-key", str(self.project.certs / "sites" / node.site)]
        else:
            command += ["--insecure"]
        node.process = processes.start(
            command, self.private / f"site-{node.site}.log", self.env, self.sites[node.site].path.parent
        )
        node.starts += 1
        self.save()

    def _submit(self, resume: bool) -> None:
        self.run_id, self.status = self.link.submit(resume), "running"
        self._server_seen = time.monotonic()
        self.save()
        self.log(f"run {self.run_id} has begun")

    # -- watching ---------------------------------------------------------------------------------
    @property
    def finished(self) -> bool:
        """Whether the run has its final metrics."""
        return (self.out / RESULT).exists()

    def watch(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Keep the processes running until the run has ended.

        Args:
            on_tick: Called several times per second.

        Raises:
            FedheadError: With the server's reason, if the run failed.
        """
        while not self.finished:
            on_tick()
            self._restart_link()
            self._restart_nodes()
            reason = self._server_failure()
            if reason is not None:
                self.status = f"failed: {reason}"
                self.save()
                raise FedheadError(reason)
            time.sleep(0.3)
        on_tick()
        self.status = "finished"
        self.save()

    def _restart_nodes(self) -> None:
        for node in self.nodes:
            if node.process is None or node.process.poll() is None:
                continue
            now = time.monotonic()
            if node.next_start == 0.0:
                node.next_start = now + RESTART_SECONDS
                self.log(f"the node of {node.site} has ended with code {node.process.returncode}; it is started again")
            elif now >= node.next_start:
                node.next_start = 0.0
                self._start_node(node)

    def _restart_link(self) -> None:
        if self.link.process is None or self.link.process.poll() is None:
            return
        if not self._may_resume():
            raise FedheadError(
                f"the SuperLink has ended {MAX_RESUMES + 1} times without a round in between: "
                f"see {self.private / 'link.log'}"
            )
        code = self.link.process.returncode
        self.log(f"the SuperLink has ended with code {code}; it is started again, and the run resumed")
        server = ServerStatus.read(self.private / lock.SERVER, self.run_id)
        if server is not None:  # it may not have noticed yet, and would hold the run folder
            processes.end(lambda: [server.process])
        self._start_link()
        self._submit(resume=True)

    def _may_resume(self) -> bool:
        """Count a resumption; return False if the last few have brought no new round."""
        checkpoint = self.out / CHECKPOINT
        written = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        self.resumes_without_progress = 1 if written != self._resumed_at else self.resumes_without_progress + 1
        self._resumed_at = written
        self.resumes += 1
        return self.resumes_without_progress <= MAX_RESUMES

    def _server_failure(self) -> str | None:
        """Why the run can't go on, None if it does; a server that ended without a status is started again."""
        status = ServerStatus.read(self.private / lock.SERVER, self.run_id)
        if status is not None and status.failure is not None:
            return status.failure
        now = time.monotonic()
        if status is not None and status.process.alive():
            self._server_seen = now
        if now - self._server_seen < ASK_SECONDS:
            return None
        self._server_seen = now
        return self._lost_run()  # runs a command, so only if there is no server

    def _lost_run(self) -> str | None:
        """Resume a run that Flower ended from its checkpoint, a limited number of times; else return the reason."""
        try:
            runs = self.link.flwr("ls", "--run-id", str(self.run_id), "--format", "json").get("runs", [])
        except (FedheadError, subprocess.TimeoutExpired) as error:
            self.log(f"the SuperLink does not say how the run is: {error}")
            return None  # asked again later; a link that has ended is started again
        status = str(runs[0].get("status", "")) if runs else ""
        if not status.startswith("finished") or self.finished:
            return None
        if not self._may_resume():
            return f"Flower ended the run ({status}); see flwr log {self.run_id}"
        self.log(f"Flower ended the run ({status}); it is resumed")
        self._submit(resume=True)
        return None

    # -- the end ----------------------------------------------------------------------------------
    def save(self) -> None:
        """Write the running processes to the state file, for `status` and `down`."""

        def entry(process: subprocess.Popen[bytes] | None) -> dict[str, Any]:
            return vars(ProcessIdentity.of(process.pid)) if process is not None else {"pid": 0, "started": ""}

        state = {
            "status": self.status,
            "address": self.link.address,
            "secure": self.secure,
            "run": self.run_id,
            "link": entry(self.link.process),
            "nodes": {n.site: entry(n.process) | {"port": n.port, "starts": n.starts} for n in self.nodes},
        }
        with atomic(self.private / lock.STATE) as draft:
            draft.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")

    def close(self) -> None:
        """End all processes started here."""
        if not self._claimed:
            return
        nodes = [node.process for node in self.nodes if node.process is not None]
        marks = [ProcessIdentity.of(process.pid) for process in nodes]
        processes.end(lambda: marks)  # nodes first: they unregister at the link
        lock.end_leftovers(self.project)
        for process in [*nodes, *([self.link.process] if self.link.process is not None else [])]:
            process.wait()
        self.save()
        self._claimed = False
        lock.release(self.project)
