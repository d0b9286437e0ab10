"""The page in a real browser: what a reader does works, nothing is fetched, nothing overlaps, everyone can read it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import AXE, SCREENSHOTS, Opened
from made_runs import make_run

from fedhead.recipes.recipe import Recipe
from fedhead.report.page import page as report_page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]
Visit = Callable[..., Opened]

# Texts of one chart that cover each other, by more than the blank edge of their boxes.
OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure.chart:not([hidden]) .plot")) {
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim() && t.getClientRects().length);
    const rotated = (t) => [t, t.parentNode].some((one) => /rotate/.test(one.getAttribute("transform")));
    const boxes = texts.filter((t) => !rotated(t)).map((t) => [t.textContent, t.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 2 && high > 4) found.push(`${svg.parentNode.id}: ${a} / ${b}`);
    }));
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_every_width_and_scheme_is_readable(visit: Visit, report: Path, width: int, scheme: str) -> None:
    opened = visit(report.as_uri(), width, scheme)
    opened.draw_all()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.tab.screenshot(path=SCREENSHOTS / f"sweep-{width}-{scheme}.png", full_page=True)
    assert opened.complaints == []
    assert opened.asked_others(report.as_uri()) == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.tab.evaluate(OVERLAPS) == []
    if not AXE.exists():
        pytest.skip("axe-core is not there: `make test-browser` fetches it with npm")
    opened.tab.evaluate(AXE.read_text(encoding="utf-8"))
    found = opened.tab.evaluate("axe.run(document).then((found) => found.violations)")
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


def test_hover_shows_the_numbers_of_the_run_folders(visit: Visit, report: Path, sweep: Path) -> None:
    opened = visit(report.as_uri())
    opened.draw_all()
    opened.tab.locator("#curve-1").scroll_into_view_if_needed()
    place = opened.tab.evaluate(
        """() => {
          const plot = document.querySelector("#curve-1 .plot"), {xaxis, yaxis} = plot._fullLayout;
          const trace = plot.data.find((t) => t.name === "scaffold" && t.mode === "lines");
          const box = plot.getBoundingClientRect(), last = trace.x.length - 1;
          const [x, y] = [xaxis.d2p(trace.x[last]), yaxis.d2p(trace.y[last])];
          return [box.left + xaxis._offset + x, box.top + yaxis._offset + y];
        }"""
    )
    opened.tab.mouse.move(*place)
    opened.tab.wait_for_timeout(300)
    shown = opened.tab.locator("#curve-1 .hoverlayer").text_content()
    folders = [sweep / f"scaffold-0.1-{seed}" for seed in range(3)]
    values = [json.loads((f / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"] for f in folders]
    assert "scaffold" in shown
    assert f"{statistics.fmean(values):.3f}" in shown  # four digits, of which the last may be rounded twice
    assert f"{statistics.stdev(values):.2f}" in shown


def test_the_legend_hides_shows_and_isolates_by_mouse_and_keyboard(visit: Visit, report: Path) -> None:
    tab = visit(report.as_uri()).tab
    shown = "document.querySelector('#curve-0 .plot').data.filter(t => t.visible === true)"
    visible = f"[...new Set({shown}.map(t => t.legendgroup))]"
    buttons = tab.locator("#curves .legend button")
    tab.locator("#curve-0").scroll_into_view_if_needed()
    tab.wait_for_selector("#curve-0 .main-svg")
    buttons.filter(has_text="moon").click()
    assert tab.evaluate(visible) == ["fedavg", "fedetf", "fedprox", "scaffold"]
    assert buttons.filter(has_text="moon").get_attribute("aria-pressed") == "false"
    buttons.filter(has_text="fedetf").dblclick()
    assert tab.evaluate(visible) == ["fedetf"]
    buttons.filter(has_text="fedetf").dblclick()
    assert len(tab.evaluate(visible)) == 5
    buttons.filter(has_text="scaffold").focus()
    tab.keyboard.press("Enter")
    assert "scaffold" not in tab.evaluate(visible)
    tab.keyboard.press("Shift+Enter")
    assert tab.evaluate(visible) == ["scaffold"]


def test_tables_are_sorted_and_filtered(visit: Visit, report: Path) -> None:
    tab = visit(report.as_uri()).tab
    names = "[...document.querySelector('#results-0').tBodies[0].rows].map(r => r.cells[0].textContent)"
    column = "[...document.querySelector('#results-0').tBodies[0].rows].map(r => Number(r.cells[2].dataset.value))"
    before = tab.evaluate(names)
    head = tab.locator("#results-0 thead th").nth(2)
    head.get_by_role("button").click()
    assert tab.evaluate(column) == sorted(tab.evaluate(column), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate(column) == sorted(tab.evaluate(column))
    tab.locator("#results-0 thead th").first.get_by_role("button").click()
    assert tab.evaluate(names) == sorted(before)
    tab.locator("#runs-table-filter").fill("moon 0.05")
    shown = tab.locator("#runs-table tbody tr:visible")
    assert shown.count() == 3
    assert all("moon-0.05" in text for text in shown.all_inner_texts())


def test_zoom_stays_when_colors_change_and_is_taken_back(visit: Visit, report: Path) -> None:
    tab = visit(report.as_uri()).tab
    tab.locator("#curve-0").scroll_into_view_if_needed()
    tab.wait_for_selector("#curve-0 .main-svg")
    spans = "document.querySelector('#curve-0 .plot')._fullLayout.xaxis.range"
    whole = tab.evaluate(spans)
    box = tab.locator("#curve-0 .nsewdrag").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 100, box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 250, box["y"] + 150, steps=5)
    tab.mouse.up()
    zoomed = tab.evaluate(spans)
    assert zoomed[0] > whole[0]
    assert zoomed[1] < whole[1]
    ink = "getComputedStyle(document.querySelector('#curve-0 .xtick text')).fill"
    before = tab.evaluate(ink)
    tab.evaluate("document.getElementById('theme').click()")  # a click of Playwright would scroll the page
    tab.wait_for_timeout(200)
    assert tab.evaluate(spans) == zoomed
    assert tab.evaluate(ink) != before
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.mouse.dblclick(box["x"] + 100, box["y"] + 50)
    tab.wait_for_timeout(400)
    assert tab.evaluate(spans) == whole


def test_choices_and_permalinks(visit: Visit, report: Path) -> None:
    opened = visit(report.as_uri() + "#partitions")
    tab = opened.tab
    tab.wait_for_timeout(400)
    assert abs(tab.locator("#partitions h2").bounding_box()["y"]) < 300
    tab.locator("#results-choice").select_option("test_loss")
    assert tab.locator("#results-1").is_hidden()
    assert "test loss" in tab.locator("#results .caption:visible").inner_text()
    tab.locator("#curves-choice").select_option("f1")
    tab.wait_for_selector("#curve-0 .main-svg")
    assert tab.evaluate("document.querySelector('#curve-0 .plot')._fullLayout.yaxis.title.text") == "f1"
    tab.locator("#gains h2 a").click()
    assert tab.url.endswith("#gains")
    assert opened.complaints == []


def test_every_control_is_reached_by_the_keyboard(visit: Visit, report: Path) -> None:
    tab = visit(report.as_uri()).tab
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "results-choice", "results-0-by-1", "gains-choice", "curves-choice", "curves-legend-0"} <= reached


def test_awful_words_and_many_clients_hold(visit: Visit, tmp_path: Path) -> None:
    awful = "<img src=x onerror=alert(1)> & $a$ %{x} " + "w" * 200 + " שלום"
    names = ["<b>cat</b>", "a & b", "$x^2$", "100 %", "שלום", "x" * 200, "مرحبا", "7", "8", "9"]
    make_run(tmp_path / "a", Recipe(dataset="digits", rounds=4, stages=("ccvr",)), names=names)
    make_run(
        tmp_path / "b", Recipe(dataset="digits", rounds=4, method_parameters={"note": awful}), names=names, best=85
    )
    make_run(tmp_path / "c", Recipe(dataset="digits", rounds=2, clients=1000), classes=300, samples=20000)
    make_run(tmp_path / "d", Recipe(dataset="digits", rounds=9, method="moon"), done=3, names=names)
    file = report_page.write([tmp_path], tmp_path / "report.html")
    for width in (390, 1280):
        opened = visit(file.as_uri(), width)
        opened.draw_all()
        opened.tab.screenshot(path=SCREENSHOTS / f"awful-{width}.png", full_page=True)
        assert opened.complaints == []
        assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.tab.evaluate("document.querySelectorAll('img').length") == 0
        assert (
            opened.tab.locator("#results-0 tbody th bdi[title]").first.get_attribute("title")
            == f"fedavg (note={awful})"
        )


@pytest.fixture
def long_names(tmp_path: Path) -> Path:
    """The page about runs with long names, a wide table and 20 classes."""
    for mu in (0.022881136684755242, 0.3):
        for clients in range(10, 22):
            recipe = Recipe(dataset="digits", rounds=2, method="fedprox", method_parameters={"mu": mu}, clients=clients)
            make_run(tmp_path / f"a_long_name_of_a_folder/{mu}/{clients}", recipe, classes=20, samples=300)
    return report_page.write([tmp_path], tmp_path / "report.html")


# Words of table cells and legends that are broken over two lines.
BROKEN = """() => [...document.querySelectorAll("th bdi, td bdi, .legend bdi")].flatMap((bdi) => {
  const found = [];
  for (const node of bdi.childNodes) for (const word of (node.textContent ?? "").matchAll(/[^\\s-]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (node.nodeType === Node.TEXT_NODE && lines.size > 1) found.push(word[0]);
  }
  return found;
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_names_are_whole_and_stay_while_a_wide_table_scrolls(visit: Visit, long_names: Path, width: int) -> None:
    tab = visit(long_names.as_uri(), width).tab
    assert tab.evaluate(BROKEN) == []
    region, name = tab.locator("#results .wide:visible"), tab.locator("#results-0 tbody th").first
    before = name.bounding_box()
    region.evaluate("(region) => { region.scrollLeft = 9999; }")
    assert region.evaluate("(region) => region.scrollLeft") > 100
    assert name.bounding_box() == before
    assert "fedprox (mu=0.02288)" in name.inner_text().replace("\n", " ")


def test_navigation_folds_on_a_phone_and_fits_elsewhere(visit: Visit, report: Path) -> None:
    wide = visit(report.as_uri(), 1280).tab
    assert wide.locator("#fold").is_hidden()
    assert wide.evaluate("[...document.querySelectorAll('nav a')].every(a => a.getBoundingClientRect().right < 1280)")
    tab = visit(report.as_uri(), 390).tab
    link = tab.locator("nav a").filter(has_text="Confusion")
    assert link.is_hidden()
    tab.locator("#fold").click()
    assert tab.locator("#fold").get_attribute("aria-expanded") == "true"
    link.click()
    assert tab.url.endswith("#confusion")
    assert link.is_hidden()


def test_confusion_has_numbers_where_they_fit_and_touch_has_no_bar(visit: Visit, long_names: Path) -> None:
    shown = "document.querySelectorAll('#confusion-0 .heatmap-label').length"
    wide, phone = visit(long_names.as_uri(), 1280), visit(long_names.as_uri(), 390)
    for opened in (wide, phone):
        opened.draw_all()
    assert wide.tab.evaluate(shown) > 20
    assert phone.tab.evaluate(shown) == 0
    assert wide.tab.locator("#confusion-0 .modebar").count() == 1
    assert phone.tab.locator(".modebar").count() == 0
    wide.tab.set_viewport_size({"width": 420, "height": 900})
    wide.tab.wait_for_function(f"{shown} === 0")


def test_print_shows_every_chart(visit: Visit, report: Path, tmp_path: Path) -> None:
    opened = visit(report.as_uri())
    opened.tab.pdf(path=tmp_path / "report.pdf")
    drawn: Any = opened.tab.evaluate("[...document.querySelectorAll('figure.chart')].map((f) => Boolean(f.drawn))")
    assert drawn
    assert all(drawn)
    assert (tmp_path / "report.pdf").stat().st_size > 50_000


def test_print_keeps_what_is_chosen_and_is_light(visit: Visit, report: Path) -> None:
    tab = visit(report.as_uri(), scheme="dark").tab
    tab.locator("#results-choice").select_option("test_loss")
    tab.locator("#curves-choice").select_option("f1")
    tab.emulate_media(media="print", color_scheme="dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert "test loss" in tab.locator("#results .caption:visible").inner_text()
    assert tab.locator("#curves-choice").is_visible()
    assert tab.locator("#curves-choice").input_value() == "f1"
    assert tab.evaluate("document.querySelector('#curve-0 .plot')._fullLayout.yaxis.title.text") == "f1"
    ink = "getComputedStyle(document.querySelector('#curve-0 .ytitle')).fill"
    assert tab.evaluate(ink) == "rgb(26, 34, 48)"
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(ink) != "rgb(26, 34, 48)"
