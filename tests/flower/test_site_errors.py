"""Errors at a site: the server learns a code and a reference number, the site's own log has the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedhead.core.system.errors import FedheadError
from fedhead.core.system.text import printable
from fedhead.deploy.project import Project
from fedhead.flower import factory
from fedhead.flower.server.messaging import Failure, Outgoing, ask
from fedhead.flower.server_run import serve
from fedhead.flower.site.client_handler import respond
from fedhead.flower.wire import site_errors, wire
from fedhead.flower.wire.protocol import Request, read_response, to_json
from fedhead.testing.inprocess import InProcess, through_bytes

SECRET = "Anna Muster 1970-01-31"


def make(folder: Path, data: str) -> Project:
    """Two sites with data of their own; the first one's `data` is spoiled."""
    good = folder / "good.npz"
    np.savez(good, x=np.zeros((4, 4, 4), np.uint8), y=np.array([0, 1, 0, 1]))
    project = Project.init(folder / SECRET / "demo", "digits", ["north", "south"], ["rounds=1"], [str(good)] * 2)
    text = project.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.3")
    project.server_file.write_text(text + "classes: [cat, dog]\nshape: [1, 4, 4]\n")
    (project.path / "sites" / "north" / "site.yaml").write_text(f"name: north\ndata: {data}\n")
    return project


def label(folder: Path) -> str:
    (folder / "own.csv").write_text(f"path,label\na.png,{SECRET}\n")
    return str(folder / "own.csv")


def class_folder(folder: Path) -> str:
    (folder / "images" / SECRET).mkdir(parents=True)
    (folder / "images" / SECRET / "1.png").write_text("no image")
    return str(folder / "images")


def image(folder: Path) -> str:
    (folder / f"{SECRET}.png").write_text("no image")
    (folder / "own.csv").write_text(f"path,label\n{SECRET}.png,cat\n")
    return str(folder / "own.csv")


def absent(folder: Path) -> str:
    return f'"{folder / SECRET}.npz"'


def own_code(folder: Path) -> str:
    code = folder / f"own_{folder.name}.py"  # a new name each time: Python imports a module once
    code.write_text(f"def load():\n    raise ValueError('the cell {SECRET} is no number')\n")
    return f"{code.stem}:load"


def settings(folder: Path) -> str:
    return f"x.npz\nbata: {SECRET}"


SPOILED = {label: "data", class_folder: "data", image: "data", absent: "data", own_code: "data", settings: "settings"}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_what_an_error_quotes_stays_at_the_site(
    spoil: Callable[[Path], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # where the site's own code is
    project = make(tmp_path, spoil(tmp_path))
    site = factory.site_of(str(project.path / "sites" / "north" / "site.yaml"))
    request = wire.pack(to_json(Request("hello", factory.run_spec(project.server()), 10.0)), {})
    content = respond(through_bytes(request), site, watchdog=False)
    sent = repr(content) + str(dict(content.config_records["fedhead"]))
    response = read_response(wire.unpack(through_bytes(content))[0])
    log = capsys.readouterr().err
    assert response.problem == SPOILED[spoil]
    assert re.fullmatch(r"[0-9a-f]{8}", response.reference)
    assert f"problem {response.reference} ({response.problem})" in log
    assert SECRET in log
    assert not any(part in sent for part in (SECRET, "Anna", str(tmp_path)))


def test_the_server_says_which_site_by_code_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = make(tmp_path, label(tmp_path))
    nodes = {
        10 + k: factory.site_of(str(project.path / "sites" / name / "site.yaml"))
        for k, name in enumerate(project.server().sites)
    }
    told: list[str] = []
    found = serve(project.server(), InProcess(nodes), log=told.append)
    assert found["rounds"] == 1
    line = next(line for line in told if "site north (node 10) is left out: " in line)
    reference = re.search(r"its data can't be used for this run \(data, reference ([0-9a-f]{8}) in the site", line)
    assert reference
    assert f"problem {reference[1]} (data)" in capsys.readouterr().err
    assert not any("Anna" in line for line in told)


def test_a_text_that_a_hostile_site_sends_is_cut_and_escaped(tmp_path: Path) -> None:
    project = make(tmp_path, "good.npz")
    site = factory.site_of(str(project.path / "sites" / "south" / "site.yaml"))
    grid = InProcess({10: site})
    request = Request("hello", factory.run_spec(project.server()), 10.0)
    hostile = "\x1b[2J\n12:00:00 error: all is lost\r" * 200_000

    def lie(message: Message, honest: Callable[[], RecordDict]) -> RecordDict:
        header, _ = wire.unpack(honest())
        return wire.pack({**header, "problem": hostile, "reference": hostile, "site": hostile}, {})

    grid.faults[10] = lie
    failure = ask(grid, 0.001, {0: Outgoing(10, request)}, 5.0)[0]
    assert isinstance(failure, Failure)
    assert len(failure.reason) <= 510
    assert len(str(failure.site)) <= 510
    assert (failure.reason + str(failure.site)).isprintable()


def test_every_code_has_a_text_and_foreign_errors_have_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, reference = site_errors.record("north", RuntimeError(SECRET))
    assert code == "error"
    assert SECRET not in site_errors.describe(code, reference)
    log = capsys.readouterr().err
    assert f"problem {reference} (error): {SECRET}" in log
    assert "RuntimeError" in log
    with pytest.raises(site_errors.SiteProblem) as caught, site_errors.coded("data"), site_errors.coded("state"):
        raise FedheadError("inner")
    assert caught.value.code == "state"
    assert "does not know" in site_errors.describe("\x1b[2J", "?")
    assert printable(site_errors.describe("x" * 10**6, "y" * 10**6)) == site_errors.describe("x" * 10**6, "y" * 10**6)
