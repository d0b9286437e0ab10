"""Figures for print: with two runs and with twelve no text touches another, fonts are large enough and embedded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from made_runs import FINAL, STAGE
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedhead.cli import call
from fedhead.data.federation.federation import Federation
from fedhead.papers.analyses import plots as analysis_plots
from fedhead.papers.analyses.registry import ANALYSES
from fedhead.papers.analyses.run_analysis import write_csv
from fedhead.recipes.recipe import Recipe
from fedhead.report.compare import rank_diagram, statistics
from fedhead.report.figures import plots
from fedhead.report.style import WIDTHS, save
from fedhead.runs.run_folder import RunFolder

AWFUL = ["<b>a</b> & $b_1$ 5 %", "ש" * 30, "L" * 200, "tab\tand\nline"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(count: int) -> list[str]:
    usual = [f"fedavg dirichlet(0.{i}), seed={i}" for i in range(count)]
    return [*AWFUL, *usual][:count] if count > len(AWFUL) else usual


def collapse(names: list[str], width: float) -> Figure:
    rows = [{"round": r, **dict.fromkeys(analysis_plots.COLLAPSE, 0.1 * r)} for r in (1, 2, 3, 10)]
    return analysis_plots.collapse(dict.fromkeys(names, rows), width)


DRAWN: dict[str, Callable[[list[str], float], Figure]] = {
    "cka": lambda n, w: analysis_plots.heat_maps({f"layer{i}": rng().random((9, 9)) for i in range(3)}, range(9), w),
    "cka-means": lambda n, w: analysis_plots.layer_means(
        {k: {f"extractor.{i}": 0.1 * i for i in range(9)} for k in n}, w
    ),
    "norms": lambda n, w: analysis_plots.by_client_and_class(
        {"samples": rng().random((30, 10)), "norms, round 1": rng().random((30, 10))}, range(30), w
    ),
    "norms-calibration": lambda n, w: analysis_plots.norms_before_after(rng().random(100), rng().random(100), w),
    "separability": lambda n, w: analysis_plots.separability(
        rng().random(len(n)).tolist(), {"CCVR": [1.0] * len(n), "all real data": [2.0] * len(n)}, n, w
    ),
    "amounts": lambda n, w: analysis_plots.amounts(
        {k: ([50, 100, 2000], [60.0, 61.0, 62.0]) for k in n}, dict.fromkeys(n, 50.0), "virtual features per class", w
    ),
    "embed": lambda n, w: analysis_plots.embeddings(
        rng().random((50, 2)), {t: np.arange(50) % 10 for t in ("truth", "before calibration", "after")}, AWFUL * 2, w
    ),
    "inversion": lambda n, w: analysis_plots.images(
        {f"class {c}": {t: rng().random((1, 8, 8)) for t in ("original", "mean of 10")} for c in (1, 2, 3)}, w
    ),
    "features": lambda n, w: analysis_plots.client_embeddings(
        {k: (rng().random((40, 2)), np.arange(40) % 10, np.arange(40) % 20) for k in n}, 10, w
    ),
    "conductance": lambda n, w: analysis_plots.rank_maps(
        {k: (np.stack([rng(i).permutation(64) for i in range(20)]), range(20)) for k in n}, n[:1], w
    ),
    "curves": lambda n, w: analysis_plots.epoch_curves(
        {k: {"epochs": [1, 2], "mean": [50.0, 60.0], "deviation": [1.0, 2.0]} for k in n}, w
    ),
    "collapse": collapse,
    "classifiers": lambda n, w: analysis_plots.classifiers(
        {k: (rng().random((20, 20)), rng().random((100, 2)), np.arange(100) % 10) for k in n}, w
    ),
    "finetune": lambda n, w: analysis_plots.steps(
        {k: dict.fromkeys(["global", "extractor", *(f"classifier {t}" for t in range(1, 21))], 50.0) for k in n}, w
    ),
    "dimension": lambda n, w: analysis_plots.dimension(
        {d: {"accuracy": 60.0, "nc1": 0.1, "nc2": 0.2} for d in (9, 10, 16, 32, 64, 128)}, w
    ),
    "labels": lambda n, w: plots.bubbles(rng().integers(0, 900, (20, 10)), [*AWFUL, *map(str, range(6))], n[-1], w),
    "labels of many": lambda n, w: plots.bubbles(rng().integers(0, 9, (1000, 300)), None, n[-1], w),
    "ranks": lambda n, w: rank_diagram.critical_difference(statistics.rank(n, rng().random((9, len(n)))), w),
}  # fmt: skip


def texts(fig: Figure) -> Iterator[Text]:
    """The texts that are drawn."""
    yield from fig.texts
    for legend in fig.legends:
        yield from legend.get_texts()
    for ax in fig.axes:
        yield from (ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts)
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low - 1e-9 <= tick.get_loc() <= high + 1e-9]
            yield from (label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible())


_MANY_PANELS = ("features", "conductance", "classifiers", "labels of many")  # whose layout takes seconds


def _cases() -> Iterator[Any]:
    """Two runs in one column in the quick tier; more runs and widths in the slower ones."""
    for kind, count, width in itertools.product(DRAWN, (2, 12), (1, 2)):
        tier = pytest.mark.long if kind in _MANY_PANELS else pytest.mark.slow
        if (count, width) == (2, 1):
            yield pytest.param(kind, count, width)
        elif kind in _MANY_PANELS or (count, width) == (12, 1):
            yield pytest.param(kind, count, width, marks=tier)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count", "width"), list(_cases()))
@pytest.mark.filterwarnings("ignore:Glyph")
def test_no_text_touches_another_and_none_is_small(kind: str, count: int, width: int) -> None:
    fig = DRAWN[kind](labels(count), WIDTHS[width])
    FigureCanvasAgg(fig)
    fig.draw_without_rendering()
    shown = [text for text in texts(fig) if text.get_visible() and text.get_text().strip()]
    assert min(float(text.get_fontsize()) for text in shown) >= 7
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        along = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert across < 1 or along < 1, f"{a!r} and {b!r}"
    assert fig.get_figwidth() <= WIDTHS[width] + 1e-6
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.x1 <= fig.bbox.width + 1, text


def test_every_kind_of_figure_is_drawn_above() -> None:
    by_others = {"virtual": "amounts", "learning": "curves"}
    assert {by_others.get(kind, kind) for kind in ANALYSES} - {"forecast"} <= set(DRAWN)


def test_points_of_rounds_far_apart_are_not_joined() -> None:
    drawn = collapse(["fedavg"], 6.9).axes[0].lines[0]
    assert np.isnan(np.asarray(drawn.get_ydata(), float)).tolist() == [False, False, False, True, False]


def test_features_keep_the_classifiers_order() -> None:
    ranks = np.stack([rng(i).permutation(6) for i in range(3)])
    (image,) = analysis_plots.rank_maps({"fedclassavg": (ranks, [0, 1, 2])}).axes[0].images
    assert np.asarray(image.get_array()).tolist() == ranks.T.tolist()


def test_bubbles_have_a_legend_of_sizes() -> None:
    counts = np.array([[1, 400], [100, 30]])
    fig = plots.bubbles(counts)
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == ["400", "100", "20"]
    dots = dict(zip(counts[counts > 0].tolist(), fig.axes[0].collections[0].get_sizes(), strict=True))
    diameters: list[Any] = [handle.get_markersize() for handle in legend.legend_handles]  # type: ignore[union-attr]
    assert diameters[0] ** 2 == pytest.approx(dots[400])
    assert diameters[1] ** 2 == pytest.approx(dots[100])


def test_files_have_the_columns_width_and_embedded_fonts(tmp_path: Path) -> None:
    fig = DRAWN["curves"](labels(2), WIDTHS[1])
    save(fig, tmp_path / "a.png")
    assert matplotlib.image.imread(tmp_path / "a.png").shape[1] == pytest.approx(3.3 * 200, abs=1)
    save(fig, tmp_path / "a.pdf")
    assert b"/FontFile2" in (tmp_path / "a.pdf").read_bytes()
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method, seed in (("fedavg", 0), ("fedprox", 0)):
        recipe = Recipe(dataset="digits", method=method, seed=seed, rounds=2)
        folder = RunFolder.create(tmp_path / "runs" / f"{method}-{seed}", recipe)
        folder.save_split(Federation.from_arrays(np.zeros((30, 2)), np.arange(30) % 3, "dirichlet(0.5)", 4))
        with folder.locked():
            for number in (1, 2):
                row = {"round": number, "accuracy": 50.0 + number, "metrics": {"f1": 0.5}, "seconds": 0.1}
                folder.record({**row, "bytes_up": 1, "bytes_down": 1})
        steps = {"global": 50.0, "extractor": 60.0}
        folder.finish({**FINAL, "stages": {"finetune_etf": {**STAGE, "steps": steps}}})
    return tmp_path / "runs"


def test_figures_of_records_need_neither_data_nor_a_checkpoint(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, more in (("learning", ["--metric", "f1"]), ("labels", ["--width", "1"]), ("finetune", [])):
        assert call(["figure", kind, str(runs), "--out", str(tmp_path / f"{kind}.png"), *more]) == 0
        assert (tmp_path / f"{kind}.png").stat().st_size > 1000
    assert (tmp_path / "labels-2.png").exists()  # one figure per run
    lines = (tmp_path / "finetune.csv").read_text().splitlines()
    assert [line.rpartition("/")[2] for line in lines[:2]] == ["global,50.0", "extractor,60.0"]
    assert "fedavg/mean,0.5,0.5" in (tmp_path / "learning.csv").read_text().lower()
    capsys.readouterr()
    assert call(["figure"]) == 0
    assert "separability" in capsys.readouterr().out
    assert call(["analyse", "learning", str(runs / "fedprox-0"), "--out", str(tmp_path)]) == 0
    assert "51 52" in capsys.readouterr().out


def test_texts_of_runs_are_no_formulas_in_the_csv_file(tmp_path: Path) -> None:
    write_csv({"=1+1": {"value": [-1.0, "@SUM(1)"]}}, tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text() == "'=1+1/value,-1.0,'@SUM(1)\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["learnign"], "did you mean 'learning'"),
        (["learning", "--metric", "f2"], "unknown metric of these runs 'f2': did you mean 'f1'?"),
        (["learning", "--width", "3"], "--width: 3 is out of range, it must be at least 1 and at most 2"),
        (["learning", "--out", "a.jpg"], "must end in .png, .svg or .pdf"),
        (["curves"], "no clients' accuracies"),
    ],
)
def test_what_can_not_be_drawn_is_said(
    runs: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["figure", words[0], str(runs), *words[1:]]) == 2
    assert says in capsys.readouterr().err
