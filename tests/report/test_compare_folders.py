"""Comparisons of run folders: by `fh.compare` and by the command."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_runs import FINAL

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.recipes.recipe import Recipe
from fedhead.report.compare import comparison_text
from fedhead.runs.run_folder import RunFolder


def write_run(path: Path, accuracy: float, finished: bool = True, **keys: Any) -> None:
    """A run folder as a short run leaves it; the split follows from the seed."""
    recipe = Recipe.from_flat({"dataset": "digits", "rounds": 1, **keys})
    folder = RunFolder.create(path, recipe)
    federation = Federation.from_arrays(np.zeros((30, 2)), np.arange(30) % 3, "dirichlet(0.5)", 4, seed=recipe.seed)
    folder.save_split(federation)
    with folder.locked():
        folder.record({"round": 1, "accuracy": accuracy, "bytes_up": 1, "bytes_down": 1, "seconds": 0.5})
    if finished:
        folder.finish({**FINAL, "accuracy": accuracy})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("compared") / "runs"
    for i, method in enumerate(("fedavg", "scaffold")):
        for dataset in ("digits", "mnist"):
            for seed in (0, 1):
                place = runs / f"{method}-{dataset}-{seed}"
                write_run(place, 60.0 + i + seed * (i + 1), method=method, dataset=dataset, seed=seed)
    return runs


@pytest.fixture
def own_folders(folders: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(folders, tmp_path / "runs")


def test_runs_in_folders_are_compared_and_those_that_do_not_count_are_named(own_folders: Path) -> None:
    folders = own_folders
    write_run(folders / "stopped", 99.0, finished=False, method="moon")
    (folders / "newer").mkdir()
    (folders / "newer" / "config.yaml").write_text("dataset: digits\nkey_of_2030: 1\n")
    (folders / "empty").mkdir()
    found = fh.compare(folders)
    assert found.table.index.tolist() == ["fedavg", "scaffold"]
    assert found.table.loc["scaffold", "digits"] == pytest.approx(62.0)
    notes = "\n".join(found.notes)
    assert "stopped does not count: unfinished" in notes
    assert "newer can't be read and does not count" in notes
    assert str(folders / "empty") not in notes  # no run began there: it is passed over
    assert found.results["pairs"].dropna().tolist() == [2, 2]
    assert "scaffold" in repr(found)


def test_a_run_whose_split_is_gone_does_not_count(own_folders: Path) -> None:
    before = fh.compare(own_folders).table
    shutil.copytree(own_folders / "fedavg-digits-1", own_folders / "copy")
    (own_folders / "copy" / "partition.npz").unlink()
    found = fh.compare(own_folders)
    assert found.table.equals(before)
    assert any("copy does not count: its partition.npz is gone" in note for note in found.notes)


def test_versions_of_runs_are_named_where_they_differ(own_folders: Path) -> None:
    RunFolder.open(own_folders / "fedavg-digits-0").save_environment({"versions": {"fedhead": "9.9"}})
    assert any("several versions of fedhead: 9.9, None" in note for note in fh.compare(own_folders).notes)


def test_results_are_compared_as_their_folders_are(folders: Path) -> None:
    loaded = fh.load_all(folders / "*")
    assert fh.compare(loaded).results.equals(fh.compare(str(folders / "*")).results)


def test_compare_writes_what_the_suffix_says(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, diagram = tmp_path / "table.tex", tmp_path / "ranks.pdf"
    assert call(["compare", str(folders), "--out", str(out), "--diagram", str(diagram)]) == 0
    assert f"written to {out}\nwritten to {diagram}\n" in capsys.readouterr().out
    assert b"/FontFile2" in diagram.read_bytes()  # TrueType, embedded
    found = fh.compare(folders)
    assert out.read_text() == comparison_text.latex(found.numbers)
    for suffix, text in comparison_text.FORMATS.items():
        found.save(tmp_path / f"again{suffix}")
        assert (tmp_path / f"again{suffix}").read_text() == text(found.numbers)


def test_compare_prints_tables(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["compare", str(folders), "--baseline", "scaffold", "--metric", "seconds"]) == 0
    shown = capsys.readouterr().out
    assert "Difference from scaffold" in shown
    assert "low is good" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--metric", "f1"], "unknown metric of these runs 'f1'"),
        (["--baseline", "moon"], "unknown baseline 'moon'"),
        (["--by", "methods"], "unknown key 'methods'"),
        (["--level", "1.5"], "level"),
        (["--out", "table.txt"], "end its name in .md, .csv or .tex"),
        (["--diagram", "cd.jpg"], "must end in .png, .svg or .pdf"),
    ],
)
def test_bad_words_are_refused_in_one_line(
    folders: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["compare", str(folders), *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_diagram_needs_two_settings(folders: Path) -> None:
    with pytest.raises(BadInput, match="at least two methods"):
        fh.compare(str(folders / "*-digits-*")).diagram()


@pytest.mark.parametrize("as_module", [True, False])
def test_runs_of_a_module_begin_with_its_weights_and_the_comparison_says_so(as_module: bool, tmp_path: Path) -> None:
    federation = fh.Federation.load("digits", "iid", clients=2, subset=60)

    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, 10))

    model = fh.split(build(), classifier="2") if as_module else "mlp(hidden=[8])"
    results = [
        fh.run(federation, model, method, rounds=1, executor="loop", out=out)
        for method, out in (("fedavg", None), ("fedprox", tmp_path / "run"))
    ]
    for runs in (results, [results[0], str(tmp_path)]):
        noted = any("was a module, which starts from its own weights" in note for note in fh.compare(runs).notes)
        assert noted is as_module
