"""The registry: the four ways to a component, and one line for each way that fails."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugin_package
import pytest

from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput


def sound(found: Any, name: str) -> Any:
    if not callable(found):
        raise BadInput(f"{name} is no function")
    return found


def builtin() -> str:
    return "built in"


builtin.__module__ = "fedhead.tones"


@pytest.fixture
def tones() -> Registry[Any]:
    registry = Registry[Any]("tone", "fedhead.tones", sound)
    registry.register("bell", builtin)
    return registry


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; what was imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_built_in_and_registered_names(tones: Registry[Any]) -> None:
    @tones.decorator("drum")
    def drum() -> str:
        return "drum"

    assert tones.find("drum") is drum
    assert list(tones) == ["bell", "drum"]
    assert tones.source("bell").builtin
    assert not tones.source("drum").builtin
    with pytest.raises(BadInput, match=r"'bell' is taken already by fedhead\.tones:builtin"):
        tones.register("bell", drum)
    with pytest.raises(BadInput, match="unknown tone 'drumm': did you mean 'drum'"):
        tones.find("drumm")


def test_the_same_function_may_be_registered_again(tones: Registry[Any]) -> None:
    def make() -> Any:
        def drum() -> None: ...

        return drum

    first, again = make(), make()  # as when a notebook's cell is run twice
    tones.register("drum", first)
    tones.register("drum", again)
    assert tones.find("drum") is again


def test_modules(tones: Registry[Any], site: Path) -> None:
    plugin_package.install(site, "own-tones", {"own_tones": "class Box:\n    def horn(): ...\nlevel = 3\n"}, {})
    assert tones.find("own_tones:Box.horn").__name__ == "horn"
    found = tones.source("own_tones:Box")
    assert (found.module, found.file) == ("own_tones", str(site / "own_tones.py"))
    assert (found.distribution, found.version) == ("own-tones", "1.0")
    assert found.digest == hashlib.sha256((site / "own_tones.py").read_bytes()).hexdigest()
    with pytest.raises(BadInput, match="unknown name in own_tones 'Bex': did you mean 'Box'"):
        tones.find("own_tones:Bex")
    with pytest.raises(BadInput, match="own_tones:level is no function"):
        tones.find("own_tones:level")
    with pytest.raises(BadInput, match="there is no module 'absent_tones'; install the package"):
        tones.find("absent_tones.loud:Horn")


def test_files_beside_the_recipe_come_before_the_working_directory(
    tones: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for place in ("recipe", "here"):
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "mine.py").write_text(f"from beside_{place} import word\ndef horn(): return word\n")
        (tmp_path / place / f"beside_{place}.py").write_text(f"word = {place!r}\n")
    monkeypatch.chdir(tmp_path / "here")
    assert tones.find("mine.py:horn")() == "here"
    assert tones.find("mine.py:horn", [tmp_path / "recipe"])() == "recipe"
    assert tones.find("../mine.py:horn", [tmp_path / "recipe" / "sub"])() == "recipe"
    found = tones.source("mine.py:horn", [tmp_path / "recipe"])
    assert found.file == str(tmp_path / "recipe" / "mine.py")
    assert found.distribution is None
    with pytest.raises(BadInput, match=r"no file yours\.py in .*recipe or .*here"):
        tones.find("yours.py:horn", [tmp_path / "recipe"])
    with pytest.raises(BadInput, match=r"say what the file holds, as in mine\.py:Name"):
        tones.find("mine.py")


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tones: Registry[Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def horn(): return 1\n")
    first = tones.find("mine.py:horn", [tmp_path])
    assert tones.find("mine.py:horn", [tmp_path]) is first
    file.write_text("def horn(): return 2\n")  # of the same size, within the same second
    assert tones.find("mine.py:horn", [tmp_path])() == 2
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def horn(:\n", r"does not import \(SyntaxError"),
        ("import no_such_thing\n", r"does not import \(ModuleNotFoundError: No module named 'no_such_thing'\)"),
        ("raise ValueError('first\\nsecond')\n", r"does not import \(ValueError: first\)$"),
        ("import sys\nsys.exit(3)\n", r"does not import \(SystemExit: 3\)"),
    ],
)
def test_code_that_does_not_import(tones: Registry[Any], site: Path, tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text(code)
    (site / "broken_tones.py").write_text(code)
    before = set(sys.modules)
    for name in ("broken.py:horn", "broken_tones:horn"):
        with pytest.raises(BadInput, match=reason) as caught:
            tones.find(name, [tmp_path])
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
    assert set(sys.modules) == before


def test_entry_points(tones: Registry[Any], site: Path) -> None:
    plugin_package.install(
        site,
        "own-tones",
        {"own_tones": "def horn(): ...\n", "broken_tones": "1 / 0\n"},
        {"fedhead.tones": {"horn": "own_tones:horn", "crash": "broken_tones:crash"}, "other": {"bell": "x:y"}},
    )
    assert tones.find("horn").__module__ == "own_tones"
    assert tones.source("horn").distribution == "own-tones"
    listed = {entry.name: entry for entry in tones.listed()}
    assert list(listed) == ["bell", "crash", "horn"]
    assert listed["bell"].source == "built in"
    assert listed["horn"].source == "own-tones 1.0"
    assert "ZeroDivisionError" in (listed["crash"].problem or "")
    with pytest.raises(BadInput, match=r"own-tones.*entry point 'crash'.*ZeroDivisionError"):
        tones.find("crash")
    with pytest.raises(BadInput, match="unknown tone 'hrn': did you mean 'horn'"):
        tones.find("hrn")


def test_names_that_collide(tones: Registry[Any], site: Path) -> None:
    plugin_package.install(
        site, "one", {"one_tones": "def a(): ...\n"}, {"fedhead.tones": {"bell": "one_tones:a", "gong": "one_tones:a"}}
    )
    plugin_package.install(site, "two", {"two_tones": "def a(): ...\n"}, {"fedhead.tones": {"gong": "two_tones:a"}})
    with pytest.raises(
        BadInput, match=r"'bell' belongs to two: fedhead\.tones:builtin \(fedhead\) and one_tones:a \(one\)"
    ):
        tones.find("bell")
    with pytest.raises(BadInput, match=r"'gong' belongs to two: .*one_tones:a \(one\)") as caught:
        tones.find("gong")
    assert "two_tones:a (two)" in str(caught.value)
    assert tones.find("two_tones:a").__module__ == "two_tones"


def test_a_package_that_also_registers_its_entry_point_is_no_collision(tones: Registry[Any], site: Path) -> None:
    plugin_package.install(site, "one", {"one_tones": "def a(): ...\n"}, {"fedhead.tones": {"gong": "one_tones:a"}})
    tones.register("gong", tones.find("gong"))
    assert tones.find("gong").__module__ == "one_tones"


def test_what_is_allowed_is_decided_without_importing(tones: Registry[Any], site: Path) -> None:
    plugin_package.install(
        site, "one", {"one_tones": "1 / 0\n"}, {"fedhead.tones": {"gong": "one_tones:a", "bell": "one_tones:b"}}
    )
    tones.register("late", lambda: None)
    for name, allow, expected in [
        ("gong", [], False),
        ("gong", ["one_tones"], True),
        ("bell", [], False),  # built in, but claimed by a package that is not allowed
        ("late", [], False),
        ("nothing", [], True),  # a name without code: `find` refuses it
        ("one_tones:a", ["one_tones"], True),
        ("one_tones.deep:a", ["one_tones"], True),
        ("one_tones:a", ["one"], False),
        ("os:system", ["one_tones"], False),
        ("fedhead.core.system.process:ProcessIdentity", [], False),
        ("mine.py:a", ["mine.py"], True),
        ("../mine.py:a", ["mine.py"], False),
        ("/tmp/mine.py:a", ["mine.py"], False),
    ]:
        assert tones.permits(name, allow) is expected, name
    assert "one_tones" not in sys.modules
