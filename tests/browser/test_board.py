"""The board in a real browser: curves grow and progress advances while a run goes on, and what was set stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import AXE, SCREENSHOTS, Opened
from made_runs import make_run

from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a board about the folder, served by the command."""
    command = [sys.executable, "-m", "fedhead", "board", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split()[1]
        process.terminate()


def test_the_board_shows_a_run_while_it_goes_on(visit: Callable[..., Opened], address: str, tmp_path: Path) -> None:
    make_run(tmp_path / "done", Recipe(dataset="digits", rounds=6, stages=("ccvr",)), samples=300)
    going = make_run(tmp_path / "going", Recipe(dataset="digits", rounds=6, method="fedprox"), done=2, samples=300)
    opened = visit(address)
    tab = opened.tab
    tab.locator("#curve-0").scroll_into_view_if_needed()
    tab.wait_for_selector("#curve-0 .main-svg")
    assert tab.locator("#progress progress").get_attribute("value") == "2"
    tab.locator("#curves-choice").select_option("train_loss")
    tab.locator("#curves .legend button").filter(has_text="fedavg").click()
    tab.locator("#runs details").first.locator("summary").click()
    row = {"accuracy": 50.0, "train_loss": 0.125, "bytes_up": 1, "bytes_down": 1, "seconds": 0.5}
    with RunFolder.open(going.path).locked() as folder:
        folder.record({"round": 3, **row})
    tab.wait_for_selector("#progress progress[value='3']", timeout=20_000)
    shown = "document.querySelector('#curve-0 .plot').data.filter(t => t.visible === true)"
    tab.wait_for_function(f"{shown}.some(t => t.y.length === 3)", timeout=20_000)
    assert tab.evaluate(f"{shown}.map(t => [t.legendgroup, t.y[2]])") == [["fedprox", 0.125]]
    assert tab.locator("#curves-choice").input_value() == "train_loss"
    phone = visit(address, 390).tab
    for column in range(4):  # run, rounds, left, accuracy
        box = phone.locator("#progress-table tbody tr").first.locator("th, td").nth(column).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 900
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    phone.screenshot(path=SCREENSHOTS / "board-390.png", full_page=True)
    tab.screenshot(path=SCREENSHOTS / "board.png", full_page=True)
    assert opened.complaints == []
    assert opened.asked_others(address) == []
    if AXE.exists():
        tab.evaluate("document.querySelectorAll('figure.chart').forEach(f => { if (!f.drawn) fedhead.draw(f); })")
        tab.add_script_tag(content=AXE.read_text(encoding="utf-8"))
        found = tab.evaluate("axe.run(document).then((found) => found.violations)")
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []
