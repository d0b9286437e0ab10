"""Tables and figures: the numbers are right."""

import statistics
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from made_runs import FINAL, STAGE

from fedhead.core.system.errors import BadInput, Diverged
from fedhead.data.federation.federation import Federation
from fedhead.recipes.recipe import Recipe
from fedhead.report.figures import plots
from fedhead.report.page.content import Content
from fedhead.runs.read_runs import find_runs
from fedhead.runs.run_folder import RunFolder

ACCURACIES = {("fedavg", 0): [50.0, 60.0], ("fedavg", 1): [40.0, 70.0], ("fedprox", 0): [55.0, 80.0]}


def write_run(
    path: Path,
    recipe: Recipe,
    accuracies: list[float],
    stages: dict[str, float] | None = None,
    names: list[str] | None = None,
) -> None:
    folder = RunFolder.create(path, recipe)
    y = np.arange(30) % 3
    folder.save_split(Federation.from_arrays(np.zeros((30, 2)), y, "dirichlet(0.5)", 4, class_names=names))
    with folder.locked():
        for i, accuracy in enumerate(accuracies):
            row = {"accuracy": accuracy, "per_class": [accuracy, None, 10.0], "personal": None, "clients": None}
            folder.record({"round": i + 1, **row, "bytes_up": 10**6, "bytes_down": 2 * 10**6, "seconds": 0.5})
    if stages is not None:
        metrics = {n: {**STAGE, "accuracy": a, "per_class": [a, a, a]} for n, a in stages.items()}
        folder.finish({**FINAL, "accuracy": accuracies[-1], "stages": metrics})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for (method, seed), accuracies in ACCURACIES.items():
        stages = ("ccvr",) if method == "fedavg" else ()
        recipe = Recipe(dataset="digits", method=method, seed=seed, rounds=2, stages=stages)
        write_run(tmp_path / "runs" / f"{method}-{seed}", recipe, accuracies, dict.fromkeys(stages, 90.0 + seed))
    return tmp_path / "runs"


def table(content: Content) -> dict[str, str]:
    """The accuracies by method, as they are shown."""
    comparison = content.compared("accuracy")
    return {row: comparison.cell(i, 0) for i, row in enumerate(comparison.pivot.rows)}


def loaded(path: Path) -> Content:
    return Content(find_runs([path]).runs)


def test_values_are_of_the_last_round_over_seeds_and_of_the_stages_after_it(runs: Path) -> None:
    assert table(loaded(runs)) == {
        "fedavg": f"65.00 ± {statistics.stdev([60, 70]):.2f} (n=2)",
        "fedavg + ccvr": "90.50 ± 0.71 (n=2)",
        "fedprox": "80.00 (n=1)",
    }


def test_values_are_of_the_round_that_was_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "best", Recipe(dataset="digits", rounds=3), [50.0, 80.0, 60.0], {})
    (run,) = find_runs([tmp_path / "best"]).runs
    assert run.last("accuracy") == 60.0
    run.rows[1]["kept"] = True
    assert table(Content([run])) == {"fedavg": "80.00"}


def test_curves_show_the_mean_and_one_deviation(runs: Path) -> None:
    ax = plots.curves(loaded(runs).methods).axes[0]
    assert [line.get_label() for line in ax.lines] == ["fedavg", "fedprox"]
    assert np.asarray(ax.lines[0].get_ydata()).tolist() == [45.0, 65.0]
    band = ax.collections[0].get_paths()[0].vertices
    deviation = statistics.stdev([60, 70])
    assert np.asarray(band)[:, 1].max() == pytest.approx(65 + deviation)
    assert len(ax.collections) == 1  # a single seed has no band


def test_bubbles_have_areas_in_proportion_to_samples() -> None:
    counts = np.array([[10, 0, 40], [0, 20, 0]])
    (dots,) = plots.bubbles(counts).axes[0].collections
    places = [tuple(p) for p in np.asarray(dots.get_offsets()).tolist()]
    assert places == [(0, 0), (0, 2), (1, 1)]
    sizes = np.asarray(dots.get_sizes())
    assert (sizes / sizes[0]).tolist() == pytest.approx([1, 4, 2])


def test_only_finished_runs_are_averaged(tmp_path: Path) -> None:
    for seed, accuracies in enumerate(([90.0, 92.0], [88.0, 90.0], [10.0])):
        write_run(
            tmp_path / f"s{seed}", Recipe(dataset="digits", rounds=2, seed=seed), accuracies, {} if seed < 2 else None
        )
    content = loaded(tmp_path)
    assert table(content) == {"fedavg": "91.00 ± 1.41"}
    [note] = content.notes
    assert note.endswith("s2 does not count: unfinished, stopped after round 1 of 2")
    ax = plots.curves(content.methods).axes[0]
    assert {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in ax.lines} == {
        "fedavg": [89.0, 91.0],
        "fedavg, seed 2, unfinished": [10.0],
    }


def test_one_seed_in_three_folders_that_were_stopped_is_no_result(tmp_path: Path) -> None:
    for i, rounds in enumerate((6, 1, 2)):
        write_run(tmp_path / f"run{i}", Recipe(dataset="digits", rounds=9), [90.0 + i] * rounds)
    content = loaded(tmp_path)
    assert content.metrics == {}
    assert [(entry.runs, len(entry.unfinished)) for entry in content.methods] == [([], 1)]


@pytest.mark.parametrize(("last", "says"), [(92.0, "the same result"), (95.0, "another result (92 and 95)")])
def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path, last: float, says: str) -> None:
    for i, accuracy in enumerate((92.0, last)):
        write_run(tmp_path / f"run{i}", Recipe(dataset="digits", rounds=2), [90.0, accuracy], {})
    content = loaded(tmp_path)
    assert table(content) == {"fedavg": "92.00"}
    [note] = content.notes
    assert "run1 repeats seed 0" in note
    assert note.endswith(f"with {says}, only the first counts")


def test_a_folder_named_twice_is_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Recipe(dataset="digits", rounds=1), [90.0], {})
    assert len(find_runs([tmp_path, tmp_path / "run"]).runs) == 1


def test_a_diverged_run_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Recipe(dataset="digits", rounds=9), [90.0])
    with pytest.raises(Diverged), RunFolder.open(tmp_path / "run").locked():
        raise Diverged("client 3, round 2: 'own/w' is not finite any more")
    assert "run does not count: diverged (client 3" in loaded(tmp_path).notes[0]
    assert find_runs([tmp_path]).runs[0].state == "diverged (client 3, round 2: 'own/w' is not finite any more)"


def test_empty_folders_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Recipe(dataset="digits", rounds=1), [90.0], {})
    (tmp_path / "none").mkdir()
    assert len(find_runs([tmp_path / "run", tmp_path / "none"]).runs) == 1
    with pytest.raises(BadInput, match="none contains no run, it is empty"):
        find_runs([tmp_path / "none"])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="contains no run"):
        find_runs([tmp_path])
    with pytest.raises(BadInput, match="nowhere does not exist"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(BadInput, match=r"must end in \.png"):
        plots.save(plots.bubbles(np.ones((2, 2), np.int64)), tmp_path / "picture.gif")


@pytest.fixture
def unlike(tmp_path: Path) -> Path:
    """Runs of many settings, as `fedhead report runs/*` meets them."""
    mixed = ("digitscnn(channels=8)", "mlp(hidden=[64])", "digitscnn(channels=4, features=48)")
    common = {"rounds": 2, "clients": 12, "lr": 0.002, "optimizer": "adam", "local_epochs": 1, "model": mixed}
    write_run(tmp_path / "iid", Recipe(dataset="digits", partition="iid", rounds=2), [1.0, 2.0], {})
    write_run(tmp_path / "skewed", Recipe(dataset="digits", rounds=2, lr=0.5), [1.0, 2.0], {})
    write_run(tmp_path / "mixed", Recipe(method="local", **common), [1.0, 2.0], {})  # type: ignore[arg-type] # of many kinds
    return tmp_path


def test_a_sweep_over_stages_has_one_row_per_stage_and_one_for_what_was_trained(tmp_path: Path) -> None:
    after = {"ccvr": 70.0, "ridge": 80.0}
    for stages in ((), ("ccvr",), ("ccvr", "ridge"), ("ridge",)):
        for seed in (0, 1):
            recipe = Recipe(dataset="digits", rounds=1, stages=stages, seed=seed, loggers=("csv",) * (not stages))
            place = tmp_path / f"{'+'.join(stages) or 'none'}-{seed}"
            write_run(place, recipe, [50.0 + seed], {name: after[name] + seed for name in stages})
    write_run(
        tmp_path / "prox",
        Recipe(dataset="digits", method="fedprox", method_parameters={"mu": 0.1}, rounds=1),
        [60.0],
        {},
    )
    content = loaded(tmp_path)
    means = {row: text.partition(" ")[0] for row, text in table(content).items()}
    assert means == {"fedavg": "50.50", "fedavg + ccvr": "70.50", "fedavg + ridge": "80.50", "fedprox": "60.00"}
    assert not [note for note in content.notes if "fedavg:" in note]
    other = replace(content.runs[0].recipe, stages=("lda",))  # of the same training, with another result
    write_run(tmp_path / "other", other, [58.0], {"lda": 1.0})
    [note] = [note for note in loaded(tmp_path).notes if note.startswith("fedavg:")]
    assert "other repeats seed 0" in note or "with another result (58 and 50)" in note


@pytest.mark.slow
def test_curves_keep_their_room_however_long_the_labels_are(unlike: Path) -> None:
    entries = [replace(entry, name=f"{entry.name} {'and=more, ' * 40}") for entry in loaded(unlike).methods]
    figure = plots.curves(entries)
    figure.draw_without_rendering()  # lays it out; a layout that fails is a warning, and so an error here
    budget = figure.axes[0].get_window_extent()
    assert budget.width > 0.8 * figure.bbox.width
    assert budget.height > 2 * figure.dpi


def test_a_saved_picture_is_opaque(tmp_path: Path) -> None:
    plots.save(plots.bubbles(np.ones((2, 2), np.int64)), tmp_path / "split.png")
    pixels = matplotlib.image.imread(tmp_path / "split.png")
    assert pixels[..., 3].min() == 1.0


def test_a_finished_run_whose_metrics_were_cut_is_no_result(runs: Path) -> None:
    whole = find_runs([runs])
    cut = whole.runs[0].path
    (cut / "metrics.jsonl").write_text("")
    found = find_runs([runs])
    assert list(found.broken) == [cut]
    assert "though the run is finished: it was cut" in found.broken[cut]
    assert len(found.runs) == len(whole.runs) - 1
