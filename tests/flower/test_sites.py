"""A site's files and data: each form that is taken, and what is wrong with others, said where it can be fixed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from simulations import make_world
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.deploy import certificates
from fedhead.deploy.project import Project
from fedhead.flower import factory
from fedhead.flower.config import ServerFile, SiteFile
from fedhead.flower.site import site_data
from fedhead.flower.site.site_store import SiteStore
from fedhead.flower.wire.protocol import Request, RunSpec, read_request, to_json
from fedhead.methods import METHODS

SPEC = RunSpec("ab" * 8, {"seed": 0}, ["north", "south"], 2, [1, 4, 4], ["cat", "dog"], [0.5], [0.5])


def images(n: int = 6, size: int = 4) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.RandomState(0)
    return rng.randint(0, 256, (n, size, size)).astype(np.uint8), rng.randint(0, 2, n)


def write_folder(folder: Path, size: int = 4, classes: tuple[str, ...] = ("cat", "dog")) -> None:
    x, _ = images(size=size)
    for i, picture in enumerate(x):
        place = folder / classes[i % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i}.png")


def loaded(folder: Path, source: str, **settings: Any) -> Any:
    return site_data.federation(SPEC, 1, source, base=folder, **settings)


def test_every_form_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = images()
    y = np.array([i % 2 for i in range(6)])
    write_folder(tmp_path / "pictures")
    np.savez(tmp_path / "arrays.npz", x=x, y=y)
    np.savez(tmp_path / "words.npz", x=x, y=np.array(["cat", "dog"])[y], x_test=x[:2], y_test=np.array(["dog", "cat"]))
    lines = ["path,label", *(f"pictures/{('cat', 'dog')[i % 2]}/{i}.png,{('cat', 'dog')[i % 2]}" for i in range(6))]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    (tmp_path / "my_own_data.py").write_text(
        "import numpy as np\ndef load():\n    d = np.load(__file__[:-14] + 'arrays.npz')\n    return d['x'], d['y']\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = {source: loaded(tmp_path, source) for source in ("pictures", "arrays.npz", "list.csv", "my_own_data:load")}
    for fed in found.values():
        assert fed.sizes == (0, 6)
        assert sorted(fed.train.y.tolist()) == [0, 0, 0, 1, 1, 1]
        assert torch.equal(fed.train.x.sort(dim=0).values, torch.from_numpy(x)[:, None].sort(dim=0).values)
        assert fed.client_test is None
    with_test = loaded(tmp_path, "words.npz")
    assert [len(rows) for rows in with_test.client_test] == [0, 2]
    assert with_test.test.y.tolist() == [1, 0]
    split = loaded(tmp_path, "arrays.npz", client_test=0.34)
    assert (split.sizes, [len(rows) for rows in split.client_test]) == ((0, 4), [0, 2])
    resized = site_data.federation(SPEC, 0, "pictures", base=tmp_path, size=4)
    assert resized.sizes == (6, 0)


def test_the_share_of_a_client_holds_nothing_of_the_others() -> None:
    whole = federation()
    own = site_data.share(whole, 3)
    assert own.sizes == (0, 0, 0, 14, 0)
    assert torch.equal(own.train.x, whole.train.x[whole.indices[3]])
    assert torch.equal(own.test.x, whole.test.x[whole.client_test[3]])
    split = federation().with_client_test(0.3)
    part = site_data.share(split, 0)
    assert torch.equal(part.train.x[part.client_test[0]], split.train.x[split.client_test[0]])
    assert len(part.train.y) == len(split.indices[0]) + len(split.client_test[0])


def bad_data(folder: Path) -> dict[str, str]:
    x, y = images()
    write_folder(folder / "horses", classes=("cat", "horse"))
    write_folder(folder / "large", size=9)
    (folder / "nothing").mkdir()
    np.savez(folder / "three.npz", x=x, y=np.array([0, 1, 2, 0, 1, 2]))
    np.savez(folder / "wide.npz", x=images(size=5)[0], y=y)
    np.savez(folder / "empty.npz", x=x[:0], y=y[:0])
    (folder / "columns.csv").write_text("file,class\na.png,cat\n")
    (folder / "label.csv").write_text("path,label\na.png,horse\n")
    (folder / "none.csv").write_text("path,label\n")
    (folder / "bad_function.py").write_text(
        "def three():\n    return 1, 2, 3\ndef broken():\n    raise ValueError('no disk')\n"
    )
    return {
        "horses": "is of the class 'horse', the run's are cat, dog",
        "large": r"\(1, 9, 9\), the run is for \(1, 4, 4\).*'size'",
        "nothing": "holds no samples",
        "three.npz": "label 2 is outside the 2 classes",
        "wide.npz": r"\(1, 5, 5\)",
        "empty.npz": "holds no samples",
        "columns.csv": "'path' and 'label'",
        "label.csv": "a.png is of the class 'horse'",
        "none.csv": "no samples",
        "absent.npz": "no such file",
        "absent": "is not there",
        "bad_function:three": "must return",
        "bad_function.py:three": "must return",
        "bad_function:broken": "raised ValueError: no disk",
        "bad_function:absent": "unknown name in bad_function 'absent'",
        "no_such_module:load": "there is no module 'no_such_module'",
    }


def test_bad_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for source, reason in bad_data(tmp_path).items():
        with pytest.raises(BadInput, match=reason):
            loaded(tmp_path, source)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("recipe: digits\n", "'sites' is missing"),
        ("recipe: digits\nsites: [a, a]\n", "each once"),
        ("recipe: digits\nsites: ['../x']\n", "letters, digits"),
        ("recipe: digits\nsites: [a]\nquorum: 2\n", "at most the 1 sites"),
        ("recipe: digits\nsites: [a]\nround_second: 2\n", "did you mean 'round_seconds'"),
        ("recipe: digits\nsites: [a]\nround_seconds: 0\n", "round_seconds: 0 is out of range, it must be above 0"),
        ("recipe: digits\nsites: [a]\nset: [lr=0.1, rounds=2, lr=0.2]\n", r"set: lr is given twice \(lr=0.1 and"),
        ("recipe: digits\nsites: [a]\nset: [clients=7]\n", "set: clients=7 contradicts the list of sites, which has 1"),
        ("- a\n", "expected lines"),
    ],
)
def test_a_bad_server_file_is_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(text)
    with pytest.raises(BadInput, match=reason):
        ServerFile.read(tmp_path / "server.yaml")


def test_the_number_of_clients_may_be_repeated_but_not_contradicted(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("recipe: digits\nsites: [a, b]\nset: [clients=2]\n")
    assert ServerFile.read(tmp_path / "server.yaml").recipe_of_run().clients == 2
    with pytest.raises(BadInput, match="clients=3 contradicts the list of sites, which has 2: leave clients out"):
        Project.init(tmp_path / "demo", "digits", ["north", "south"], ["clients=3"])
    assert not (tmp_path / "demo").exists()


def test_what_deploy_init_writes_can_be_read(tmp_path: Path) -> None:
    project = Project.init(tmp_path / "demo", "digits", ["north", "south"], ["rounds=2", "stages=[ccvr]"])
    assert project.server().recipe_of_run().clients == 2
    assert list(project.sites()) == ["north", "south"]
    spec = factory.run_spec(project.server())
    assert (spec.classes, spec.shape, spec.number("south")) == (10, [1, 8, 8], 1)
    with pytest.raises(BadInput, match="not empty"):
        Project.init(tmp_path / "demo", "digits", ["north"])
    with pytest.raises(BadInput, match="did you mean 'fedprox'"):
        Project.init(tmp_path / "other", "digits", ["north"], ["method=fedporx"])
    assert not (tmp_path / "other").exists()


def test_a_site_with_an_architecture_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: a\ndata: recipe\nmodel: mlp\nmodel_parameters: {hidden: [7]}\n")
    file = SiteFile.read(tmp_path / "site.yaml")
    assert file.own_model() == {"model": "mlp", "model.hidden": [7]}
    site = factory.site(file)
    (tmp_path / "server.yaml").write_text(
        "recipe: digits\nsites: [a, b]\nset: [method=fedclassavg, model=mlp, model.feature_layer=8]\n"
    )
    spec = factory.run_spec(ServerFile.read(tmp_path / "server.yaml"))
    assert site.model == file.own_model()
    (model,) = factory.experiment_of(spec.recipe_of_run(), spec, site.model).models
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert (7, 64) in shapes


def test_an_unreadable_site_file_is_told_to_the_server(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("name: a\nbata: x\n")
    site = factory.site_of(str(tmp_path / "site.yaml"))
    with pytest.raises(BadInput, match="did you mean 'data'"):
        site.site_run(SPEC, 0)


def test_the_store_keeps_the_accepted_state_and_the_newest(tmp_path: Path) -> None:
    store = SiteStore(tmp_path, "ab" * 8, "north")
    states = [Tree(w=Weights({"a": torch.full((2,), float(r))})) for r in range(5)]
    store.keep_state(1, states[1], accepted=0)
    store.keep_state(2, states[2], accepted=1)
    store.keep_state(3, states[3], accepted=1)  # round 2 was refused
    assert store.load("state-2") is None
    assert torch.equal(store.load("state-1")["w"]["a"], states[1]["w"]["a"])
    assert torch.equal(store.load("state-3")["w"]["a"], states[3]["w"]["a"])


def test_a_full_disk_at_a_site_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="can't be written"):
        SiteStore(tmp_path / "file", "ab" * 8, "north").keep_state(1, Tree(), 0)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {**to_json(SPEC), "experiment": "../../etc"}},
        {"spec": {**to_json(SPEC), "recipe": 7}},
        {"spec": {**to_json(SPEC), "classes": "two"}},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"round": -1},
        {"kind": "shell"},
        {"more": 1},
    ],
)
def test_odd_requests_are_refused(change: dict[str, Any]) -> None:
    from fedhead.engine.policies.reply_check import Refused

    good = to_json(Request("work", SPEC, 10.0))
    assert read_request(good).spec == SPEC
    with pytest.raises(Refused):
        read_request({**good, **change})


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = certificates.write(tmp_path, ["127.0.0.1", "localhost"], ["north", "south"])
    assert {p.name for p in written} >= {"ca.crt", "ca.key", "server.crt", "server.key", "north", "north.pub"}
    for path in written:
        secret = path.name.endswith(".key") or path.name in ("north", "south")
        assert path.stat().st_mode & 0o777 == (0o600 if secret else 0o644)
    certificates.check(tmp_path, ["north", "south"])
    key = (tmp_path / "sites" / "north").read_bytes()
    authority = (tmp_path / "ca.crt").read_bytes()
    certificates.write(tmp_path, ["fl.example.org"], ["north", "west"])  # again, for another host and one site more
    assert (tmp_path / "sites" / "north").read_bytes() == key
    assert (tmp_path / "ca.crt").read_bytes() == authority
    certificates.check(tmp_path, ["north", "south", "west"])  # 127.0.0.1 is always among the server's names
    with pytest.raises(BadInput, match="east is missing"):
        certificates.check(tmp_path, ["east"])
    other = tmp_path / "other"
    certificates.write(other, ["127.0.0.1"], [])
    (tmp_path / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(BadInput, match="signature does not match"):
        certificates.check(tmp_path, ["north"])
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "LOOPBACK", ())
        certificates.write(other, ["fl.example.org"], ["north"])
    with pytest.raises(BadInput, match=r"server\.crt is not valid for 127\.0\.0\.1"):
        certificates.check(other, ["north"])
    (tmp_path / "server.crt").write_text("no certificate")
    with pytest.raises(BadInput, match="Unable to load PEM file"):
        certificates.check(tmp_path, ["north"])


def test_a_server_with_other_shapes_than_the_site_is_refused_at_the_site(tmp_path: Path) -> None:
    here = make_world(
        federation(), {"own": network("group")}, METHODS["fedavg"](), {"rounds": 1, "local": LocalTraining()}, tmp_path
    )
    request = Request("work", here.spec(), 10.0, round=1)
    down = Tree(model=Weights({"classifier.bias": torch.zeros(9)}))
    with pytest.raises(Exception, match="set up with different models"):
        here.site(0).handle(request, {"broadcast": down, "per_client": Tree()})
