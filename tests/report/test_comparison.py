"""Comparisons of runs: what is a row, what a column, who is paired with whom, and how that is written."""

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe
from fedhead.report.compare import comparison_text, statistics
from fedhead.report.compare.comparison_table import ComparisonTable, compare
from fedhead.report.compare.measured import Measured, Replicate, independent, of_runs
from fedhead.report.table import shorten
from fedhead.runs.read_runs import Run

AWFUL = ["<script>alert(1)</script>", "a & b", "5 $ of 100 %", "x_1^2 # {y} \\ ~ |*`[z]`", "ש" * 30, "L" * 200]


def one(value: float, seed: int = 0, split: str = "s", stage: str = "", **keys: Any) -> Measured:
    recipe = Recipe.from_flat({"dataset": "digits", "seed": seed, **keys, **({"stages": [stage]} if stage else {})})
    return Measured(f"runs/{len(keys)}-{seed}", recipe, stage, Replicate(seed, split), {"accuracy": value, "loss": 1.0})


def sweep(values: Mapping[tuple[str, str], list[float]]) -> list[Measured]:
    """Runs of methods and partitions over seeds, each seed with its split."""
    return [
        one(value, seed, f"{partition}{seed}", method=method, partition=partition)
        for (method, partition), each in values.items()
        for seed, value in enumerate(each)
    ]


@pytest.fixture
def table() -> ComparisonTable:
    return compare(
        sweep(
            {
                ("fedavg", "dirichlet(0.1)"): [60.0, 62.0, 61.0],
                ("fedavg", "dirichlet(0.05)"): [50.0, 51.0, 55.0],
                ("fedprox", "dirichlet(0.1)"): [61.0, 64.0, 63.5],
                ("fedprox", "dirichlet(0.05)"): [50.5, 53.0, 55.5],
            }
        )
    )


def test_methods_are_rows_and_what_else_varies_is_a_column(table: ComparisonTable) -> None:
    assert table.pivot.rows == ("fedavg", "fedprox")
    assert (table.pivot.keys, table.pivot.headings()) == (("partition",), ["dirichlet(0.05)", "dirichlet(0.1)"])
    assert [[table.cell(i, j) for j in range(2)] for i in range(2)] == [
        ["52.00 ± 2.65", "61.00 ± 1.00"],
        ["53.00 ± 2.50", "62.83 ± 1.61"],
    ]
    assert table.baseline == 0


def test_gains_are_scipys_paired_tests_with_holms_correction(table: ComparisonTable) -> None:
    first, second = table.gains  # of dirichlet(0.05) and dirichlet(0.1)
    theirs = [
        stats.ttest_rel([50.5, 53.0, 55.5], [50.0, 51.0, 55.0]),
        stats.ttest_rel([61.0, 64.0, 63.5], [60.0, 62.0, 61.0]),
    ]
    for gain, other in zip((first, second), theirs, strict=True):
        assert gain.paired is not None
        assert gain.paired.p_t == pytest.approx(other.pvalue)
        assert gain.paired.interval == pytest.approx(other.confidence_interval(0.95))
    p = sorted(other.pvalue for other in theirs)
    assert sorted([first.p_t, second.p_t]) == pytest.approx([2 * p[0], max(2 * p[0], p[1])])
    assert comparison_text.tables(table)[1].title.endswith("p-values corrected by Holm, intervals not")


def test_the_same_seed_on_another_split_is_no_partner() -> None:
    found = compare([one(50.0, 0, "a"), one(60.0, 0, "b", method="fedprox"), one(61.0, 1, "c", method="fedprox")])
    (gain,) = found.gains
    assert gain.paired is None
    assert "fedavg has no run with seed 0 on split b, seed 1 on split c, so that of fedprox is not in" in " ".join(
        found.notes
    )
    assert "fedprox has no run with seed 0 on split a, so that of fedavg is not in" in " ".join(found.notes)
    assert comparison_text.tables(found)[1].body[0][1] == "no pair"


def test_several_splits_of_a_seed_are_repetitions() -> None:
    runs = [one(50.0 + i, 0, s, partition_seed=i, method=m) for m in ("fedavg", "fedprox") for i, s in enumerate("ab")]
    found = compare(runs)
    assert (len(found.pivot.columns), found.gains[0].paired.count) == (1, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(("splits", "seeds"), [(3, 2), pytest.param(5, 3, marks=pytest.mark.slow)])
def test_intervals_hold_the_true_difference_in_95_of_100_studies(splits: int, seeds: int) -> None:
    """Simulated: the difference has a deviation of 1 over splits, and of 0.3 over the seeds of a split."""
    draw, inside, studies = np.random.default_rng(0), 0, 1000
    for _ in range(studies):
        of_split = draw.normal(2.0, 1.0, splits)
        differences = {
            Replicate(seed, str(split)): float(of_split[split] + draw.normal(0, 0.3))
            for split in range(splits)
            for seed in range(seeds)
        }
        low, high = statistics.paired(independent(differences)).interval or (0.0, 0.0)
        inside += low <= 2.0 <= high
    assert 0.93 <= inside / studies <= 0.97


def test_gains_are_averaged_within_a_split_first() -> None:
    runs = [one(50.0, seed, split) for seed in (0, 1) for split in "abc"]
    runs += [
        one(50 + 2 * "abc".index(split) + seed, seed, split, method="fedprox") for seed in (0, 1) for split in "abc"
    ]
    (gain,) = compare(runs).gains
    assert (gain.over, gain.paired) == ("3 splits × 2 seeds", statistics.paired([0.5, 2.5, 4.5]))


def test_seeds_on_one_split_are_repetitions() -> None:
    runs = [one(50.0 + seed * (m == "fedprox"), seed, method=m) for m in ("fedavg", "fedprox") for seed in (0, 1, 2)]
    (gain,) = compare(runs).gains
    assert (gain.over, gain.paired) == ("3 seeds", statistics.paired([0.0, 1.0, 2.0]))


def test_one_seed_has_no_interval_and_says_so() -> None:
    found = compare([one(50.0), one(60.0, method="fedprox")])
    (gain,) = found.gains
    assert (gain.paired.interval, gain.p_t) == (None, None)  # type: ignore[union-attr]
    assert any("single run" in note for note in found.notes)
    assert "one pair: none" in comparison_text.markdown(found)


def test_one_run_alone() -> None:
    found = compare([one(50.0)])
    assert (found.baseline, found.gains, found.ranking) == (None, (), None)
    assert "| fedavg | 50.00 |" in comparison_text.markdown(found)
    assert found.best(0) is None


@pytest.mark.parametrize(
    ("fedprox", "moon", "best"),
    [
        ([70.0, 71.0, 72.0], [60.0, 60.5, 61.0], 1),
        ([62.0, 63.0, 64.0], [60.0, 60.5, 61.0], None),  # 60.5 … 65.5 and 59.3 … 61.7
        ([70.0], [60.0, 60.5, 61.0], None),
        ([70.0, 71.0, 72.0], [60.0], None),
    ],
)
def test_the_best_is_marked_only_where_its_interval_is_apart(
    fedprox: list[float], moon: list[float], best: int | None
) -> None:
    part = "dirichlet(0.1)"
    runs = {("fedavg", part): [50.0, 50.5, 51.0], ("fedprox", part): fedprox, ("moon", part): moon}
    found = compare(sweep(runs))
    assert found.best(0) == best
    assert comparison_text.markdown(found).count("| **") == (best is not None)
    worst = compare([replace(m, values={"loss": m.values["accuracy"]}) for m in sweep(runs)], "loss")
    assert worst.best(0) == (None if len(moon) == 1 or len(fedprox) == 1 else 0)


def test_numbers_in_labels_are_short_and_still_apart() -> None:
    runs = [one(50.0, method="fedprox", **{"method.mu": mu}) for mu in (0.022881136684755242, 0.1 + 0.2)]
    assert compare(runs).pivot.rows == ("fedprox (mu=0.02288)", "fedprox (mu=0.3)")
    close = [one(50.0, method="fedprox", **{"method.mu": mu}) for mu in (0.02288113, 0.02288114)]
    assert compare(close).pivot.rows == ("fedprox (mu=0.02288113)", "fedprox (mu=0.02288114)")
    columns = compare(
        [one(50.0, lr=lr, partition="dirichlet(0.30000000000000004)") for lr in (0.01, 1 / 3)], by=["partition", "lr"]
    )
    assert columns.pivot.headings() == ["lr=0.01", "lr=0.3333"]
    assert comparison_text.tables(columns)[0].title.startswith("accuracy (%) by lr, all with dirichlet(0.3)")


def test_methods_have_the_labels_of_the_user() -> None:
    runs = [
        one(50.0),
        one(51.0, stage="ccvr"),
        *(one(60.0, method="fedprox", **{"method.mu": mu}) for mu in (0.1, 1.0)),
    ]
    labels = {"fedavg": "FedAvg", "ccvr": "CCVR", "fedprox (mu=1.0)": "Prox = strong"}
    found = compare(runs, labels=labels, baseline="fedavg")
    assert found.pivot.rows == ("FedAvg", "FedAvg + CCVR", "fedprox (mu=0.1)", "Prox = strong")
    assert found.baseline == 0
    assert compare(runs, labels={"fedavg + ccvr": "ours"}, baseline="ours").baseline == 1
    with pytest.raises(BadInput, match=r"unknown method or stage to label 'fedpros': did you mean 'fedprox'\?"):
        compare(runs, labels={"fedpros": "x"})
    with pytest.raises(BadInput, match="have the same label 'fedavg'"):
        compare(runs, labels={"fedprox (mu=0.1)": "fedavg"})


def test_low_losses_are_good() -> None:
    found = compare([one(1.0), one(2.0, method="fedprox")], metric="loss")
    assert found.better == "min"
    assert "low is good" in comparison_text.markdown(found)


def test_a_parameter_that_each_method_has_one_value_of_is_part_of_its_label() -> None:
    runs = [one(1.0, lr=0.1), one(2.0, method="fedprox", lr=0.01)]
    assert compare(runs).pivot.rows == ("fedavg (lr=0.1)", "fedprox (lr=0.01)")
    runs = [one(1.0, method="fedprox", **{"method.mu": mu}) for mu in (0.1, 1.0)]
    assert compare(runs).pivot.rows == ("fedprox (mu=0.1)", "fedprox (mu=1.0)")


def test_a_parameter_that_is_set_in_some_runs_only_tells_them_from_the_default() -> None:
    found = compare([one(60.0, method="fedprox"), one(50.0, method="fedprox", **{"method.mu": 10.0}), one(55.0)])
    assert found.pivot.rows == ("fedprox", "fedprox (mu=10.0)", "fedavg")
    assert [found.cell(i, 0) for i in range(3)] == ["60.00", "50.00", "55.00"]


def test_a_swept_parameter_is_a_column_and_one_chosen_per_data_set_only_a_note() -> None:
    runs = [one(1.0, method=m, lr=lr) for m in ("fedavg", "fedprox") for lr in (0.1, 0.01)]
    assert compare(runs).pivot.headings() == ["lr=0.01", "lr=0.1"]
    runs = [
        one(1.0, method=m, dataset=d, lr=lr) for m in ("fedavg", "moon") for d, lr in (("wine", 0.1), ("iris", 1.0))
    ]
    found = compare(runs)
    assert found.pivot.headings() == ["iris", "wine"]
    assert "lr differs between methods or settings too" in found.notes


def test_by_names_the_columns_and_the_data_stays_among_them() -> None:
    runs = [one(1.0, dataset=d, lr=lr, rounds=r) for d in ("wine", "iris") for lr in (0.1, 1.0) for r in (5, 6)]
    found = compare(runs, by=["lr"])
    assert found.pivot.keys == ("lr", "dataset")
    assert found.pivot.rows == ("fedavg (rounds=5)", "fedavg (rounds=6)")
    with pytest.raises(BadInput, match="did you mean 'rounds'"):
        compare(runs, by=["round"])
    with pytest.raises(BadInput, match="methods and stages are the rows"):
        compare(runs, by=["method"])
    with pytest.raises(BadInput, match="means are over seeds"):
        compare(runs, by=["seed"])


def test_stages_are_rows_of_their_method() -> None:
    runs = [one(60.0, stages=["ccvr"]), one(70.0, stage="ccvr"), one(65.0, method="fedprox")]
    found = compare(runs, baseline="fedprox")
    assert found.pivot.rows == ("fedavg", "fedavg + ccvr", "fedprox")
    assert [gain.paired.mean for gain in found.gains] == [-5.0, 5.0]  # type: ignore[union-attr]


def test_baselines_that_are_not_there_or_not_one() -> None:
    runs = [one(1.0, method="fedprox", **{"method.mu": mu}) for mu in (0.1, 1.0)]
    assert compare(runs, baseline="fedprox (mu=1.0)").baseline == 1
    with pytest.raises(BadInput, match="which of fedprox"):
        compare(runs, baseline="fedprox")
    with pytest.raises(BadInput, match="unknown baseline 'moon'"):
        compare(runs, baseline="moon")


def test_a_metric_that_some_or_all_runs_lack() -> None:
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        compare([one(1.0)], metric="acuracy")
    lacking = Measured("runs/x", Recipe(dataset="digits", method="moon"), "", Replicate(0, "s"), {"loss": 1.0})
    with pytest.raises(BadInput, match="these runs have no test samples"):
        compare([lacking])
    found = compare([one(1.0), lacking], metric="accuracy")
    assert (found.pivot.rows, found.notes[0]) == (("fedavg",), "runs/x has no accuracy and does not count")


def test_nothing_finished() -> None:
    with pytest.raises(BadInput, match="only finished runs count"):
        compare([])


def test_a_run_that_is_there_twice_counts_once() -> None:
    found = compare([one(50.0), one(50.0), one(51.0)])
    assert found.pivot.cells[0, 0].mean == 50.0
    assert [("the same result" in n, "another result (50 and 51)" in n) for n in found.notes[:2]] == [
        (True, False),
        (False, True),
    ]


def test_runs_of_a_sweep_over_stages_share_their_training_without_a_word() -> None:
    again, other = (one(60.0, stages=["ridge"], **{"stage.ridge.alpha": alpha}) for alpha in (2.0, 3.0))
    assert compare([one(60.0, stages=["ccvr"]), again, other]).notes == compare([one(60.0)]).notes
    assert any("another result" in note for note in compare([one(60.0, stages=["ccvr"]), one(61.0)]).notes)


def test_ranks_are_over_the_settings_that_all_methods_have() -> None:
    values = {
        (method, f"dirichlet({alpha})"): [50.0 + 2 * i + alpha]
        for i, method in enumerate(("fedavg", "fedprox", "moon"))
        for alpha in (0.05, 0.1, 0.5, 1.0)
    }
    del values["moon", "dirichlet(1.0)"]
    found = compare(sweep(values))
    assert found.ranking is not None
    assert (found.ranking.mean_ranks, len(found.ranking.ranks)) == ((3.0, 2.0, 1.0), 3)
    assert "not ranked, as not all methods have values there: dirichlet(1.0)" in found.notes
    assert "moon | 1.00 | no" in comparison_text.markdown(found)


def test_values_of_records_are_those_of_the_kept_round_and_totals() -> None:
    costs = {"seconds": 1.0, "bytes_up": 5, "bytes_down": 7}
    rows = [
        {"round": 1, "accuracy": 50.0, **costs, "metrics": {"f1": 0.5}, "clients": [1.0]},
        {"round": 2, "accuracy": 80.0, **costs, "metrics": {"f1": 0.8}, "kept": True},
        {"round": 3, "accuracy": 60.0, **costs, "metrics": {"f1": None}},
    ]
    stages = {"ccvr": {"accuracy": 85.0, "personal": None, "metrics": {"f1": 0.9}}}
    result = {"accuracy_mean": 65.0, "stages": stages}
    end, after = of_runs([Run(None, Recipe(dataset="digits", rounds=3, last_rounds=2), rows, result)])
    totals = {"seconds": 3.0, "bytes_up": 15.0, "bytes_down": 21.0}
    assert end.values == {"accuracy": 80.0, "accuracy_mean": 65.0, "f1": 0.8, **totals}
    assert after.values == {"accuracy": 85.0, "f1": 0.9}


# -- texts ------------------------------------------------------------------------------------------------------------
def test_csv_holds_the_numbers(table: ComparisonTable) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_text.csv_text(table))))
    assert [line["method"] for line in lines] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert float(lines[2]["difference"]) == pytest.approx(1.0)
    assert float(lines[3]["p_t_holm"]) == pytest.approx(table.gains[1].p_t)


@pytest.mark.parametrize("label", AWFUL)
def test_texts_hold_awful_labels(label: str) -> None:
    runs = [one(50.0, seed) for seed in (0, 1)] + [one(60.0 + seed, seed, dataset=label) for seed in (0, 1)]
    found = compare(runs)
    tex = comparison_text.latex(found)
    check_latex(tex)
    for line in comparison_text.markdown(found).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) in (0, 4, 8)  # two columns, or six and the setting
        assert "<" not in line.replace("<0.001", "")
    assert label in {line["dataset"] for line in csv.DictReader(io.StringIO(comparison_text.csv_text(found)))}


def check_latex(source: str) -> None:
    """Every special character is escaped, environments and braces match, and rows have as many cells as columns."""
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    text = "\n".join(lines)
    plain = re.sub(r"\\[\\{}$&%#_]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search(r"[#%_~<>|\"]", plain)
    opened: list[str] = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        assert word == "begin" or opened.pop() == name
        opened += [name] if word == "begin" else []
    assert not opened
    columns = [len(spec) for spec in re.findall(r"tabular\}\{(l?r*)\}", text)]
    for spec, part in zip(columns, text.split(r"\begin{tabular}")[1:], strict=True):
        rows = [line for line in part.splitlines() if line.endswith(r"\\")]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {spec}


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_texts_in_csv_are_no_formulas(start: str) -> None:
    awful = f'{start}HYPERLINK("http://example.com")'
    found = compare([one(-50.0, dataset=awful), one(-60.0)], labels={"fedavg": awful})
    rows = list(csv.DictReader(io.StringIO(comparison_text.csv_text(found))))
    assert {row["method"] for row in rows} == {f"'{awful}"}
    assert {row["dataset"] for row in rows} == {f"'{awful}", "digits"}
    assert {float(row["mean"]) for row in rows} == {-50.0, -60.0}  # numbers stay numbers


def test_latex_of_numbers_and_bold(table: ComparisonTable) -> None:
    part = "dirichlet(0.1)"
    clear = compare(sweep({("fedavg", part): [50.0, 51.0], ("fedprox", part): [90.0, 91.0]}))
    assert r"\textbf{90.50 $\pm$ 0.71}" in comparison_text.latex(clear)
    tex = comparison_text.latex(table)
    assert r"\textbf{" not in tex
    assert r"\toprule" in tex
    assert "$-$" in tex  # a lower end below 0


def test_long_labels_are_cut_in_the_middle() -> None:
    assert len(shorten("x" * 200, 60)) == 60


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(table: ComparisonTable, tmp_path: Path) -> None:
    awful = [one(50.0 + seed, seed, dataset=label) for label in AWFUL if label.isascii() for seed in (0, 1)]
    parts = [comparison_text.latex(table), comparison_text.latex(compare(awful, by=["dataset"]))]
    head = "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\usepackage{booktabs,textcomp}\n\\begin{document}\n"
    (tmp_path / "all.tex").write_text(head + "\n".join(parts) + "\\end{document}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_metrics_of_personal_models_have_the_direction_of_the_metric() -> None:
    recipe = Recipe(dataset="digits", metrics=("ece", "f1"))
    row = {"round": 1, "accuracy": None, "personal_metrics": {"ece": 0.1, "f1": 0.5}}
    row |= {"seconds": 1.0, "bytes_up": 5, "bytes_down": 7}
    measured = of_runs([Run(None, recipe, [row], {"stages": {"finetune": row}}, split="s")])
    assert [(m.stage, m.values["personal_f1"]) for m in measured] == [("", 0.5), ("finetune", 0.5)]
    assert compare(measured, "personal_f1").better == "max"
    assert compare(measured, "personal_ece").better == "min"
