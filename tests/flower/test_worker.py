"""The site's worker and its socket: content as bytes, many requests by one process, which leaves with its parent."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from fedhead.core.tree.tree import Tree, Weights
from fedhead.deploy.project import Project
from fedhead.flower import factory
from fedhead.flower.site import worker_client
from fedhead.flower.wire import wire
from fedhead.flower.wire.protocol import KINDS, Request, read_response, to_json
from fedhead.testing.inprocess import through_bytes


def test_content_crosses_the_socket_unchanged() -> None:
    tree = Tree(model=Weights({"w": torch.rand(300, 400), "empty": torch.zeros(0, 3), "s": torch.tensor(2.0)}, ["s"]))
    header = {"name": "Zürich", "round": 3}
    here, there = Pipe()
    with here, there:
        sending = threading.Thread(target=here.send, args=(wire.pack(header, {"send": tree}),))
        sending.start()
        found, trees = wire.unpack(through_bytes(there.recv()))
        sending.join()
        assert found == header
        for name, t in tree.leaves().items():
            assert torch.equal(t, trees["send"].leaves()[name])
        here.close()
        with pytest.raises(EOFError):
            there.recv()


def test_the_client_app_starts_without_torch() -> None:
    """Flower starts a process per message: that of a warm site must not load what its worker has loaded already."""
    code = "import sys, fedhead.flower.client_app as c, fedhead.flower.site.worker_client; print(c.app is not None)\n"
    code += "sys.exit('torch is loaded' if 'torch' in sys.modules else 0)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout.strip()) == (0, "True"), found.stderr


@pytest.mark.deploy
@pytest.mark.timeout(300)
def test_a_worker_answers_many_requests_and_leaves_with_its_parent(tmp_path: Path) -> None:
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], ["subset=120"])
    site, spec = str(project.path / "sites" / "north" / "site.yaml"), factory.run_spec(project.server())
    content = wire.pack(to_json(Request("hello", spec, 60.0)), {})
    place = tmp_path / "w.sock"
    with subprocess.Popen(["sleep", "1000"]) as parent:
        try:
            seconds = []
            for _ in range(3):
                begin = time.monotonic()
                with worker_client._connected(place, site, parent.pid) as connection:
                    connection.send(content)
                    answer = read_response(wire.unpack(connection.recv())[0])
                seconds.append(time.monotonic() - begin)
                assert (answer.problem, answer.site) == (None, "north")
            assert max(seconds[1:]) < seconds[0]  # torch and the data were loaded once
            Path(site).write_text("name: north\ndata: absent.npz\n")  # the next order meets the new file
            with worker_client._connected(place, site, parent.pid) as connection:
                connection.send(content)
                assert read_response(wire.unpack(connection.recv())[0]).problem == "data"
        finally:
            parent.kill()
    for worker in worker_client.STARTED:
        assert worker.wait(30) == 1  # it did not outlive its parent
    assert not place.exists()


def test_the_client_app_takes_every_kind_of_request() -> None:
    from fedhead.flower.client_app import app

    assert set(KINDS.values()) == app._registered_funcs.keys()
