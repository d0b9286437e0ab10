"""The page: its numbers are those of the runs, it needs nothing but itself, and no text of a user becomes markup."""

import json
import re
import statistics
from datetime import datetime
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import FINAL, confusion, make_run, measured
from scipy import stats

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe
from fedhead.report.page import content, page
from fedhead.report.page.content import Content
from fedhead.runs.read_runs import find_runs
from fedhead.runs.run_folder import RunFolder

AWFUL = ["<b>owl</b>", "a & b", "$x^2$", "100 %", "שלום", "x" * 200, "x" * 201, "</script>", "'", '"']


class Reader(HTMLParser):
    """Reads a page: its tables by their identifier, the charts, and what it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.charts: dict[str, dict[str, Any]] = {}
        self._table, self._chart, self._json = "", "", ""
        self.best: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.tags.append(tag)
        links = [v for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data") and v]
        self.fetched += [v for v in links if not v.startswith(("#", "data:"))]
        if tag == "table":
            self._table = given["id"] or ""
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self.best += [self._table] if "best" in (given.get("class") or "") else []
        elif tag == "figure":
            self._chart = given.get("id") or ""
        elif tag == "script":
            self._json = given.get("type") or ""

    def handle_endtag(self, tag: str) -> None:
        self._table = "" if tag == "table" else self._table
        self._json = "" if tag == "script" else self._json

    def handle_data(self, data: str) -> None:
        if self._table and self.tables[self._table] and self.tables[self._table][-1]:
            self.tables[self._table][-1][-1] += data.strip("\n")
        if self._json == "application/json":
            self.charts[self._chart] = json.loads(data)


def read(*paths: Path) -> Reader:
    return Reader(page.page(content.load(list(paths))).html())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, one with a stage, on two partitions with two seeds, and one run that did not finish."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for seed in (0, 1):
        for alpha in (0.1, 0.5):
            for method, stages in (("fedavg", ("ccvr",)), ("fedprox", ())):
                recipe = Recipe(
                    dataset="digits", method=method, partition=f"dirichlet({alpha})", seed=seed, rounds=3, stages=stages
                )
                make_run(folder / f"{method}-{alpha}-{seed}", recipe, best=80 + 10 * alpha + seed, samples=300)
    make_run(
        folder / "half",
        Recipe(dataset="digits", method="moon", partition="dirichlet(0.1)", rounds=3),
        done=2,
        samples=300,
    )
    return folder


@pytest.fixture(scope="module")
def found(runs: Path) -> Reader:
    """The page about them."""
    return read(runs)


def last(folder: Path, name: str) -> float:
    return float(json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])[name])


def test_results_are_a_pivot_of_the_numbers_in_the_run_folders(runs: Path, found: Reader) -> None:
    head, *rows = found.tables["results-0"]
    assert head == ["method", "dirichlet(0.1)", "dirichlet(0.5)"]
    assert [row[0] for row in rows] == ["fedavg", "fedavg + ccvr", "fedprox"]  # moon is not finished
    values = [last(runs / f"fedprox-0.5-{seed}", "accuracy") for seed in (0, 1)]
    assert rows[2][2] == f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert found.best.count("results-0") == 2  # one in each column


def test_gains_are_those_of_a_paired_t_interval(runs: Path, found: Reader) -> None:
    rows = {tuple(row[:2]): row[2:] for row in found.tables["gains-0"]}
    differences = [
        last(runs / f"fedprox-0.1-{seed}", "accuracy") - last(runs / f"fedavg-0.1-{seed}", "accuracy")
        for seed in (0, 1)
    ]
    mean, error = statistics.fmean(differences), float(stats.sem(differences))
    low, high = stats.t.interval(0.95, 1, mean, error)
    assert rows["fedprox", "dirichlet(0.1)"][:3] == ["2 splits", f"{mean:+.2f}", f"{low:+.2f} … {high:+.2f}"]


def test_curves_are_the_means_over_seeds_with_stages_at_their_end(runs: Path, found: Reader) -> None:
    charts = found.charts
    assert {"accuracy", "train_loss", "test_loss", "personal", "f1"} <= set(charts["curve-0"])
    traces = {t["name"]: t for t in charts["curve-0"]["accuracy"]["data"] if t["mode"] != "none"}
    assert list(traces) == ["fedavg", "fedavg + ccvr", "fedprox", "moon, seed 0, unfinished"]
    rows = [
        [json.loads(line)["accuracy"] for line in (runs / f"fedavg-0.1-{s}" / "metrics.jsonl").read_text().splitlines()]
        for s in (0, 1)
    ]
    assert traces["fedavg"]["y"] == pytest.approx(np.mean(rows, axis=0).tolist(), rel=1e-5)
    after = [json.loads((runs / f"fedavg-0.1-{s}" / "result.json").read_text())["stages"]["ccvr"] for s in (0, 1)]
    assert traces["fedavg + ccvr"]["y"] == pytest.approx([np.mean([row["accuracy"] for row in after])], rel=1e-5)
    assert len({(t["line"]["color"], t["line"]["dash"]) for t in traces.values() if t["mode"] == "lines"}) == 3


def test_classes_have_their_mean_over_the_seeds_in_which_they_were_tested(tmp_path: Path) -> None:
    for seed, per_class in enumerate([[60.0, None, 10.0], [70.0, None, None]]):
        folder = make_run(
            tmp_path / str(seed), Recipe(dataset="digits", seed=seed, rounds=1), samples=100, finish=False
        )
        folder.finish({**FINAL, "accuracy": 50.0, "per_class": per_class})
    (chart,) = read(tmp_path).charts["class-accuracy"].values()
    (trace,) = chart["data"]
    assert trace["y"] == [65, None, 10]


def test_traffic_and_time_are_means_over_seeds(found: Reader) -> None:
    traffic = {tuple(row[:2]): row[2:] for row in found.tables["traffic-table"]}
    assert traffic["fedavg", "dirichlet(0.1)"] == ["1.32", "44.0"]  # 3 rounds of 440 kB, among 10 clients
    head, *rows = found.tables["time-table"]
    spent = dict(zip(head, rows[0], strict=True))
    assert (spent["compiling"], spent["stage ccvr"]) == ("2.00", "1.50")
    assert float(spent["all"]) == pytest.approx(3.5 + float(spent["rounds"]), abs=0.02)


def test_equal_differences_have_no_interval_and_are_not_called_one_pair(tmp_path: Path) -> None:
    for method, accuracy in (("fedavg", 50.0), ("fedprox", 60.0)):
        for seed in (0, 1):
            folder = make_run(
                tmp_path / f"{method}{seed}", Recipe(dataset="digits", method=method, seed=seed, rounds=1), finish=False
            )
            row = {"round": 1, "accuracy": accuracy, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1}
            (folder.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            folder.finish({**FINAL, "accuracy": accuracy})
    assert read(tmp_path).tables["gains-0"][1][:4] == ["fedprox", "2 splits", "+10.00", "all equal: none"]


def test_the_page_fetches_nothing_and_is_the_same_again(runs: Path, tmp_path: Path) -> None:
    date = datetime(2026, 1, 31, 9, 5)
    html = page.page(content.load([runs]), date=date).save(tmp_path / "new" / "report.html").read_text()
    reader = Reader(html)
    assert reader.fetched == []
    assert not {"iframe", "object", "embed"} & set(reader.tags)
    assert "default-src 'none'" in html
    assert page.page(content.load([runs]), date=date).html() == html
    ids = re.findall(r' id="([^"]+)"', html[html.index("<main>") : html.index("</main>")])
    assert len(ids) == len(set(ids))


def test_sections_are_there_where_their_data_are(tmp_path: Path) -> None:
    def sections(path: Path) -> list[str]:
        return [section.id for section in page.page(content.load([path])).sections]

    made = make_run(tmp_path / "whole", Recipe(dataset="digits", rounds=2), samples=100)
    every = ["results", "curves", "partitions", "classes", "confusion", "clients", "traffic", "time", "runs"]
    assert sections(made.path) == every
    folder = RunFolder.create(tmp_path / "bare", Recipe(dataset="digits", rounds=1))
    assert sections(folder.path) == ["runs"]
    with folder.locked():
        folder.record({"round": 1, "train_loss": 2.0, "bytes_up": 0, "bytes_down": 0, "seconds": 0.1})
    folder.finish({**FINAL, "seconds": 0.1})
    assert sections(folder.path) == ["results", "curves", "traffic", "time", "runs"]


def test_the_head_has_title_date_command_and_what_all_runs_share(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    labels = ["--label", "fedavg=FedAvg", "--label", "ccvr=calibrated"]
    assert call(["report", str(runs), "--out", str(out), "--title", "A <new> title", *labels]) == 0
    assert "FedAvg + calibrated" in capsys.readouterr().out
    html = out.read_text().replace("<wbr>", "")
    header = html[html.index("<header>") : html.index("</header>")]
    assert "<h1><bdi>A &lt;new&gt; title</bdi></h1>" in header
    assert re.search(r"<time [^>]*>20\d\d-\d\d-\d\d \d\d:\d\d</time>", header)
    assert f"fedhead report {runs} --out {out} --title" in header
    assert "rounds=3" in header
    assert "partition" not in header
    found = Reader(html)
    assert [row[0] for row in found.tables["results-0"]] == ["method", "FedAvg", "FedAvg + calibrated", "fedprox"]
    assert f"Folders in {runs}" in html
    assert found.tables["runs-table"][1][0] == "fedavg-0.1-0"
    assert call(["report", str(runs), "--out", str(out), "--label", "fedavg"]) == 2
    assert "write NAME=TEXT" in capsys.readouterr().err


def test_one_setting_is_named_above_and_in_no_column(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        make_run(tmp_path / method, Recipe(dataset="digits", method=method, rounds=2), samples=100)
    html = page.page(content.load([tmp_path])).html()
    found = Reader(html)
    assert found.tables["results-0"][0] == ["method", "accuracy (%)"]
    assert "accuracy (%), digits, dirichlet(0.1), single runs" in html
    assert all("setting" not in rows[0] for rows in found.tables.values())
    assert found.best == []


def test_confusion_cells_have_their_share_as_text(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", Recipe(dataset="digits", rounds=1), samples=100, finish=False)
    folder.finish({**FINAL, "accuracy": 50.0, "confusion": [[1, 2], [0, 4]]})
    (chart,) = read(tmp_path).charts["confusion-0"].values()
    assert chart["data"][0]["text"] == [["33", "67"], ["", "100"]]


def test_analyses_enter_the_page(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", Recipe(dataset="digits", rounds=2), samples=100).path
    (path / "analysis").mkdir()
    (path / "analysis" / "embed.png").write_bytes(b"png")
    assert "img" in read(path).tags


def test_words_of_the_user_do_not_become_markup(tmp_path: Path) -> None:
    awful = "<script>alert(1)</script> & $x$ %{y} " + "y" * 200 + " שלום"
    recipe = Recipe(dataset="digits", rounds=2, method_parameters={"note": awful}, clients=3)
    make_run(tmp_path / "run", recipe, names=AWFUL, samples=200)
    make_run(tmp_path / "other", Recipe(dataset="digits", rounds=2, clients=3), names=AWFUL, samples=200)
    html = page.page(content.load([tmp_path])).html()
    assert "<script>alert" not in html
    assert "<b>owl" not in html
    found = Reader(html)
    assert {row[0][:20] for row in found.tables["results-0"]} == {"method", "fedavg", "fedavg (note=<script"}
    assert f'title="{escape(f"fedavg (note={awful})")}"' in html  # whole where the pointer rests
    (by_class,) = found.charts["class-accuracy"].values()
    names = by_class["data"][0]["x"]
    assert len(set(names)) == len(AWFUL)  # shortened, and still one place per class
    assert names[0] == "&lt;b&gt;owl&lt;/b&gt;"


@pytest.mark.slow
def test_many_clients_and_classes(tmp_path: Path) -> None:
    make_run(
        tmp_path / "run", Recipe(dataset="digits", rounds=1, clients=1000, stages=("ccvr",)), classes=300, samples=6000
    )
    html = page.page(content.load([tmp_path])).html()
    assert len(html) < 2_500_000
    found = Reader(html)
    (heat,) = found.charts["partition"]["p0"]["data"]
    assert heat["type"] == "heatmap"
    assert len(heat["z"]) <= 120
    split = RunFolder.open(tmp_path / "run").split()
    assert split is not None
    each = -(-1000 // len(heat["z"]))
    shown = sum(v or 0 for row in heat["z"] for v in row) * each
    assert shown == pytest.approx(split.counts.sum(), rel=0.02)
    assert not any(name.startswith("confusion") for name in found.charts)


def test_a_partition_is_a_map_of_its_counts(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", Recipe(dataset="digits", rounds=1, clients=4), samples=300).path
    split = RunFolder.open(path).split()
    assert split is not None
    (heat,) = read(path).charts["partition"]["p0"]["data"]
    assert [[value or 0 for value in row] for row in heat["z"]] == split.counts.tolist()


def test_broken_runs_and_runs_of_another_version_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "good", Recipe(dataset="digits", rounds=2), samples=100)
    damaged = make_run(tmp_path / "damaged", Recipe(dataset="digits", rounds=2, seed=1), samples=100).path
    (damaged / "metrics.jsonl").write_text("nonsense\n")
    newer = make_run(tmp_path / "newer", Recipe(dataset="digits", rounds=2, seed=2), samples=100).path
    (newer / "config.yaml").write_text((newer / "config.yaml").read_text() + "from_the_future: 3\n")
    assert set(find_runs([tmp_path]).broken) == {damaged, newer}
    rows = {Path(row[0]).name: row for row in read(tmp_path).tables["runs-table"][1:]}
    assert rows["newer"][4].startswith("broken: ")
    assert "unknown key" in rows["newer"][4]
    assert call(["report", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 0
    assert "damaged is broken and does not count" in capsys.readouterr().out
    with pytest.raises(BadInput, match="line 1 can't be read"):
        page.write([damaged], tmp_path / "none.html")


def test_control_characters_of_a_run_folder_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(
        tmp_path / "a\x1b[31mrun",
        Recipe(dataset="digits", rounds=2, method_parameters={"note": "\x1b]0;owned\x07"}),
        done=1,
        samples=100,
    )
    make_run(tmp_path / "b", Recipe(dataset="digits", rounds=2, method_parameters={"note": "\x9b31m"}), samples=100)
    make_run(tmp_path / "c", Recipe(dataset="digits", rounds=2), samples=100)
    for command in (["report", str(tmp_path), "--out", str(tmp_path / "r.html")], ["compare", str(tmp_path)]):
        assert call(command) == 0
    said = capsys.readouterr()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", said.out + said.err)
    assert r"a\x1b[31mrun does not count" in said.out


def test_a_stage_from_a_file_has_the_name_of_its_record(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", Recipe(dataset="digits", rounds=1, stages=("ccvr",)), samples=100).path
    for name in ("config.yaml", "result.json"):
        new = "mine.py:Mine" if name == "config.yaml" else "mine"
        (path / name).write_text((path / name).read_text().replace("ccvr", new))
    assert [row[0] for row in read(path).tables["results-0"]] == ["method", "fedavg", "fedavg + mine"]


def test_a_run_that_was_kept_twice_counts_once(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name, Recipe(dataset="digits", rounds=2), samples=100)
    found = content.load([tmp_path])
    assert [len(entry.runs) for entry in found.entries] == [1]
    assert found.notes[0].endswith("with the same result, only the first counts")


def test_made_numbers_are_what_evaluations_record() -> None:
    """The made runs of these tests have what the page reads of real ones."""
    rng = np.random.default_rng(0)
    assert {"accuracy", "per_class", "clients", "personal", "metrics", "test_loss"} <= set(measured(50.0, 3, 4, rng))
    assert [sum(row) for row in confusion(50.0, 4, rng)] == [50] * 4


def test_an_empty_page_says_so() -> None:
    assert "no run yet" in page.page(Content([])).html()


@pytest.mark.slow
def test_notebooks_show_results_inline(tmp_path: Path) -> None:
    federation = fh.Federation.from_arrays(
        np.random.default_rng(0).random((60, 4)), np.arange(60) % 3, clients=3, test=0.3
    )
    settings: dict[str, Any] = {"rounds": 2, "stages": [fh.CCVR()], "executor": "loop"}
    result = fh.run(federation, "mlp(hidden=[4])", fh.FedAvg(), **settings)
    shown = result.show()
    assert shown._repr_html_().startswith('<iframe style="width:100%;height:640px')
    found = Reader(shown.save(tmp_path / "report.html").read_text())
    assert [row[0] for row in found.tables["results-0"]] == ["method", "fedavg", "fedavg + ccvr"]
    assert found.tables["results-0"][1][1] == f"{result.accuracy:.2f}"
    assert "partition" in found.charts
    make_run(tmp_path / "runs" / "one", Recipe(dataset="digits", rounds=2), samples=100)
    assert "results" in [section.id for section in fh.load_all(str(tmp_path / "runs" / "*")).show().sections]


def test_a_study_has_a_section_with_and_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study"
    study.mkdir()
    awful = "</script>"
    rows = ["trial,state,value,trained_rounds,seconds,lr,method,reason"]
    rows += [f"{n},complete,{50 + n % 3},2,1.0,{10.0**-n},{('fedavg', awful)[n % 2]}," for n in range(4)]
    (study / "trials.csv").write_text("\n".join([*rows, "4,pruned,1,1,0.1,0.5,fedavg,poor"]) + "\n")
    (study / "slices.png").write_bytes(b"png")
    assert call(["report", str(study), "--out", str(tmp_path / "a.html")]) == 0
    assert "studies: 1" in capsys.readouterr().out
    found = Reader((tmp_path / "a.html").read_text())
    assert found.tables["tuning-table"][1] == ["study", "value", "52", "lr=0.01, method=fedavg", "4", "1", "0"]
    assert f'alt="slices, {study}" src="data:image/png;base64,cG5n"' in (tmp_path / "a.html").read_text()
    make_run(tmp_path / "final", Recipe(dataset="digits", rounds=2))
    (study / "trials.csv").write_text(rows[0] + "\n")
    both = page.page(content.load([tmp_path])).html()
    assert "no trial is complete yet" in both
    assert '<section id="results"' in both


def test_runs_without_a_site_are_kept_apart_from_the_full_run(tmp_path: Path) -> None:
    for name, (left_out, best) in {"run": (None, 90.0), "north": ("north", 80.0), "east": ("east", 70.0)}.items():
        folder = make_run(tmp_path / name, Recipe(dataset="clinic", rounds=2), best=best)
        (folder.path / "partition.npz").unlink()  # the server does not know the sites' split
        sites = {"sites": ["north", "south", "east"], "leave_out_site": left_out, "objects": {"federation": "north"}}
        folder.save_environment({**folder.environment(), **sites})
    shown = Content(find_runs([tmp_path]).runs)
    assert shown.columns == ["leave_out_site=east", "leave_out_site=north", "leave_out_site=null"]
    assert [len(entry.runs) for entry in shown.entries] == [1, 1, 1]
    compared = fh.compare(tmp_path)
    assert compared.table.shape == (1, 3)
    assert len({float(value) for value in compared.table.to_numpy().ravel()}) == 3
    tables = Reader(page.page(shown).html()).tables
    assert sorted(row[2] for row in tables["runs-table"][1:]) == [
        "clinic, dirichlet(0.1)",
        "clinic, dirichlet(0.1), without east",
        "clinic, dirichlet(0.1), without north",
    ]
    html = page.page(shown).html()
    assert re.search("Deployed at the sites .*north, south, east [(]east only tested[)].* another 'out' in", html)
    assert "Begun in Python" not in html
    alone = Content(find_runs([tmp_path / "east"]).runs)
    alone.runs[0].rows[-1]["personal_metrics"] = {"auroc": 0.875}
    assert "personal_auroc" in alone.metrics
    assert alone.compared("personal_auroc").cell(0, 0) == "0.8750"
    assert alone.compared("accuracy").pivot.headings() == ["clinic, dirichlet(0.1), leave_out_site=east"]
