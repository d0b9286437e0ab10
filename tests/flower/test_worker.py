"""The site's node and worker: many requests by one process, which ends with its parent and is replaced when killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import flwr
import pytest
from flwr.app import RecordDict
from flwr.supercore.inflatable import inflatable_utils

from fedhead.deploy.project import Project
from fedhead.flower import backoff, factory, node
from fedhead.flower.site import worker_client
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import KINDS, Request, Response, read_response, to_json


def test_the_client_app_starts_without_torch() -> None:
    """The node answers by it: what the worker has loaded must not be loaded there too."""
    code = "import sys, fedhead.flower.client_app as c, fedhead.flower.site.worker_client; print(c.app is not None)\n"
    code += "sys.exit('torch is loaded' if 'torch' in sys.modules else 0)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout.strip()) == (0, "True"), found.stderr


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, RecordDict]:
    """A site, and a request to it."""
    monkeypatch.setattr(worker_client, "_workers", [])
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], ["subset=120"])
    request = Request("hello", factory.run_spec(project.server()), 60.0)
    return str(project.path / "sites" / "north" / "site.yaml"), wire.pack(to_json(request), {})


def asked(hello: tuple[str, RecordDict]) -> Response:
    return read_response(wire.unpack(worker_client.ask(hello[1], hello[0]))[0])


@pytest.mark.deploy
@pytest.mark.timeout(300)
def test_a_worker_answers_many_requests_and_is_replaced_when_killed(
    hello: tuple[str, RecordDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = set()
    for _ in range(3):
        assert (asked(hello).problem, asked(hello).site) == (None, "north")
        processes.add(worker_client._workers[0].process.pid)
    assert len(processes) == 1  # torch was loaded once
    Path(hello[0]).write_text("name: north\ndata: absent.npz\n")  # the next request meets the new file
    assert asked(hello).problem == "data"
    (first,) = worker_client._workers
    first.process.send_signal(signal.SIGSTOP)
    send = first.connection.send

    def send_and_kill(content: RecordDict) -> None:
        send(content)
        first.process.kill()

    monkeypatch.setattr(first.connection, "send", send_and_kill)
    with pytest.raises(RuntimeError, match="ended before it had a response"):
        asked(hello)
    assert asked(hello).problem == "data"
    (second,) = worker_client._workers
    second.connection.close()
    assert second.process.wait(30) == 0


@pytest.mark.deploy
@pytest.mark.timeout(300)
def test_a_busy_worker_ends_with_its_parent(hello: tuple[str, RecordDict]) -> None:
    program = (
        "import sys; from fedhead.flower.site.worker_client import Worker; "
        "worker = Worker.start(sys.argv[1]); print(worker.process.pid, flush=True); worker.connection.recv()"
    )
    words = [sys.executable, "-c", program, hello[0]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}/environ").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_polling_intervals_grow_with_the_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr(backoff.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    polls = backoff.Backoff(0.1)
    for later in (0.0, 2.0, 20.0, 200.0):
        now[0] = 100.0 + later
        polls.sleep(3)
    polls.restart()
    polls.sleep(3)
    assert slept == pytest.approx([0.1, 0.2, 2.0, 3, 0.1])


def test_the_node_s_loop_answers_only_when_it_has_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, tasks = list[float](), [True, False]
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    waiting = node.Waiting(lambda: tasks.pop(0))
    waiting.sleep(3)
    assert len(tasks) == 2
    waiting.sleep(0.5)
    waiting.sleep(0.5)
    assert (tasks, slept) == ([], [node.MESSAGE_SECONDS, node.REPLY_SECONDS])


def test_flower_asks_soon_for_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = inflatable_utils.pull_objects.__kwdefaults__
    monkeypatch.setitem(defaults, "initial_backoff", 100)
    backoff.shorten_object_waits()
    tries, begin = [], time.monotonic()

    def pull(name: str) -> bytes:
        tries.append(name)
        if len(tries) == 1:
            raise inflatable_utils.ObjectUnavailableError(name)
        return b"here"

    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"here"}
    assert time.monotonic() - begin < 10


def test_an_untested_flower_starts_its_own_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Replaced(Exception):
        pass

    def execvp(file: str, words: list[str]) -> None:
        raise Replaced(file, words)

    monkeypatch.setattr(flwr, "__version__", "1.42.0")
    monkeypatch.setattr(os, "execvp", execvp)
    monkeypatch.setattr(sys, "argv", ["node", "--superlink", "here:1"])
    with pytest.raises(Replaced) as replaced:
        node.main()
    assert replaced.value.args == ("flower-supernode", ["flower-supernode", "--superlink", "here:1"])
    assert "Flower 1.42.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "address"),
    [("--port 9101", "127.0.0.1:9101"), ("--host ::", "[::1]:9094"), ("--host 0.0.0.0 --port=1", "127.0.0.1:1")],
)
def test_the_node_finds_its_own_api(words: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["node", "--superlink", "a:1", *words.split(), "--insecure"])
    assert node._runtime_options() == {"server_address": address, "insecure": True, "root_certificates": None}


def test_the_client_app_takes_every_kind_of_request() -> None:
    from fedhead.flower.client_app import app

    assert set(KINDS.values()) == app._registered_funcs.keys()
