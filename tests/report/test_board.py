"""The board: the page over HTTP, up to date with the run folders, for this machine alone."""

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import FINAL, make_run

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe
from fedhead.report.page import board
from fedhead.runs.run_folder import RunFolder


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A board about the folder, and its port."""
    monkeypatch.setattr(board, "SHARE", 1e9)  # every question is answered anew
    with board.server(board.Watched([tmp_path]), port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def sections(port: int) -> dict[str, str]:
    status, text = ask(port, "/sections")
    assert status == 200
    return {section["id"]: section["html"] for section in json.loads(text)["sections"]}


def test_the_board_follows_runs_from_their_first_file_to_their_end(tmp_path: Path, port: int) -> None:
    status, html = ask(port, "/")
    assert status == 200
    assert "no run yet" in html
    assert 'data-live="2000"' in html
    folder = make_run(tmp_path / "run", Recipe(dataset="digits", rounds=4), done=3, samples=100)
    found = sections(port)
    assert 'value="3"' in found["progress"]
    assert "running" in found["progress"]
    heads = re.findall(r'<th [^>]*scope="col"><bdi>(.*?)</bdi>', found["progress"])
    assert heads[:4] == ["run", "rounds", "left", "accuracy"]  # a phone shows four columns
    assert "running" in found["runs"]
    assert "stopped" not in found["runs"]
    assert "does not count" not in ask(port, "/")[1]  # it goes on
    assert "Training loss by client and round" in found["progress"]
    row = {"round": 4, "accuracy": 12.5, "train_loss": 1.0, "bytes_up": 0, "bytes_down": 0, "seconds": 0.5}
    with RunFolder.open(folder.path).locked() as held:
        held.record({**row, "failed": {"3": "out of memory"}})
    found = sections(port)
    assert 'value="4"' in found["progress"]
    assert "12.5" in found["progress"]
    assert "failed: 3: out of memory" in found["progress"]
    folder.finish({**FINAL, "seconds": 2.0})
    found = sections(port)
    assert "progress" not in found
    assert "12.50" in found["results"]
    (folder.path / "metrics.jsonl").write_text("nonsense\n")
    assert "broken: " in sections(port)["runs"]


def test_a_damaged_run_is_shown_beside_the_others(tmp_path: Path, port: int) -> None:
    for name in ("sound", "damaged"):
        make_run(tmp_path / name, Recipe(dataset="digits", rounds=2), samples=100)
    metrics = tmp_path / "damaged" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"bytes_up": 220000', '"bytes_up": null'))
    found = sections(port)
    assert "line 1 lacks bytes_up as a number" in found["runs"]
    assert "results" in found


def test_only_this_machine_is_answered(port: int) -> None:
    assert ask(port, "/", host="attacker.example")[0] == 400
    assert ask(port, "/sections", host="[attacker")[0] == 400
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, "/", host="[::1]:8080")[0] == 200


def test_browsers_that_leave_early_print_nothing(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset on closing
    assert ask(port, "/")[0] == 200
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(board, "TIMEOUT", 0.1)
    port = request.getfixturevalue("port")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as browser:
        assert browser.recv(1) == b""


def test_unchanged_runs_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", Recipe(dataset="digits", rounds=2), samples=100)
    watched = board.Watched([tmp_path])
    first = watched.page().sections
    monkeypatch.setattr(board, "load_run", lambda place: pytest.fail("it was read again"))
    monkeypatch.setattr(watched, "_next", 0.0)
    assert watched.page().sections == first


def test_what_can_not_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="nowhere is no folder"):
        board.serve([tmp_path / "nowhere"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert call(["board", str(tmp_path), "--port", str(port)]) == 2
    assert "select another --port" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"is no address of this machine|can.t listen"):
        board.serve([tmp_path], host="203.0.113.7")
