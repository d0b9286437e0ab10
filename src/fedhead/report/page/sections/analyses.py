"""What `fedhead analyse` has left in the run folders: head norms, CKA, neural collapse, separability, and pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fedhead.core.system.special_files import read_text
from fedhead.report.page.charts import Chart, axis, heat, lines, round_axis, style, text
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Cell, Section, chart, choice, identifier, legend, notes, panels, table, words

FOLDER = "analysis"  # below a run folder
LARGEST = 250_000  # bytes of a picture that the page takes in
_COLLAPSE = {
    "nc1": "NC1, variance within over between classes",
    "nc2": "NC2, error of the prototypes' simplex",
    "nc3": "NC3, cosine of classifier and prototypes",
    "prototype_consistency": "consistency of the clients' prototypes",
    "classifier_consistency": "consistency of the clients' classifiers",
}


def sections(content: Content) -> list[Section]:
    """Return one section per kind of analysis that is there; a file that holds something else is named."""
    out: list[Section] = []
    for kind, (title, make) in _KINDS.items():
        bodies: list[str] = []
        wrong: list[str] = []
        for run in content.runs:
            file = run.folder.path / FOLDER / f"{kind}.json"
            if not file.is_file():
                continue
            try:
                numbers = json.loads(read_text(file))
                bodies.append(make(numbers, identifier(kind, len(bodies)), str(run.folder.path)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                wrong.append(f"{file} can't be shown: {type(error).__name__}: {error}")
        if bodies or wrong:
            out.append(Section(kind, title, "".join(bodies) + notes(wrong)))
    return [*out, *_pictures(content)]


def _pictures(content: Content) -> list[Section]:
    """Return the pictures of the analyses that have no chart here."""
    found = []
    for run in content.runs:
        for file in sorted((run.folder.path / FOLDER).glob("*.png")):
            if not _known(file) and file.is_file() and file.stat().st_size <= LARGEST:
                name = f"{file.stem}, {run.folder.path}"
                picture = base64.b64encode(file.read_bytes()).decode()
                found.append(
                    f'<figure><h3>{words(name)}</h3><img alt="{escape(name)}" src="data:image/png;base64,{picture}">'
                    "</figure>"
                )
    return [Section("analyses", "Further analyses", panels(found))] if found else []


def _known(file: Path) -> bool:
    return any(file.stem == kind or file.stem.startswith(f"{kind}-") for kind in _KINDS)


def _norms(numbers: Mapping[str, Any], id: str, where: str) -> str:
    clients = [f"client {k}" for k in numbers["clients"]]
    maps = {"samples": numbers["counts"]}
    maps |= {f"norms, round {r}": each["norms"] for r, each in numbers["rounds"].items()}
    charts = {
        name: heat(z, rows="", columns="class", value="samples" if name == "samples" else "norm", row_names=clients)
        for name, z in maps.items()
    }
    body: list[list[Cell | str]] = [
        [f"round {r}", _number(each.get("correlation_with_counts"))] for r, each in numbers["rounds"].items()
    ]
    figures = [chart(id, id, charts, f"Norms of the clients' classifiers, {where}", where)]
    if "calibration" in numbers:
        found = numbers["calibration"]
        bars = [
            {"type": "bar", "y": found[name], "name": name, "marker": {"color": style(i).color}}
            for i, name in enumerate(("before", "after"))
        ]
        layout = {
            "xaxis": axis("class"),
            "yaxis": axis("norm"),
            "showlegend": True,
            "legend": {"orientation": "h", "y": 1.1},
        }
        title = "The global classifier before and after calibration"
        figures.append(chart(f"{id}-calibration", f"{id}-calibration", {"": Chart(bars, layout)}, title, title))
    correlations = table(f"{id}-table", ["local models", "correlation of norms and samples"], body)
    return choice(id, "Shown", list(charts)) + panels(figures) + correlations


def _cka(numbers: Mapping[str, Any], id: str, where: str) -> str:
    data = []
    for i, (name, found) in enumerate(numbers.items()):
        layers = [text(layer, 30) for layer in found["means"]]
        traces = lines(name, range(len(layers)), list(found["means"].values()), None, style(i))
        traces[0] |= {"x": layers, "mode": "lines+markers"}
        data += traces
    layout = {"yaxis": axis("mean CKA of two clients", range=[0, 1.02]), "xaxis": axis("layer", type="category")}
    maps = {
        f"{name}, {layer}": heat(matrix, rows="client", columns="client", value="CKA", bounds=(0, 1))
        for name, found in numbers.items()
        for layer, matrix in list(found["layers"].items())[-3:]
    }
    figures = [
        chart(f"{id}-means", f"{id}-means", {"": Chart(data, layout)}, f"Similarity of the clients' models, {where}"),
        chart(f"{id}-maps", f"{id}-maps", maps, "Similarity by pairs of clients"),
    ]
    shown = legend(f"{id}-means", {name: style(i) for i, name in enumerate(numbers)})
    return f"<h3>{words(where)}</h3>" + shown + choice(f"{id}-maps", "Layer", list(maps)) + panels(figures)


def _collapse(numbers: Mapping[str, Any], id: str, where: str) -> str:
    figures = []
    for key, title in _COLLAPSE.items():
        data: list[dict[str, Any]] = []
        for i, (name, rows) in enumerate(numbers.items()):
            found = [(row["round"], row[key]) for row in rows if key in row]
            if found:
                traces = lines(name, [r for r, _ in found], [v for _, v in found], None, style(i))
                traces[0] |= {"mode": "lines+markers" if len(found) > 2 else "markers"}  # two points make no curve
                traces[0]["marker"] = {"color": style(i).color, "size": 8}
                data += traces
        if data:
            last = max(x for trace in data for x in trace["x"])
            layout = {"xaxis": round_axis(last), "height": 260}
            figures.append(chart(f"{id}-{key}", id, {"": Chart(data, layout)}, title, title))
    shown = legend(id, {name: style(i) for i, name in enumerate(numbers)})
    return f"<h3>{words(where)}</h3>" + shown + panels(figures)


def _separability(numbers: Mapping[str, Any], id: str, where: str) -> str:
    gains = {"CCVR": "ccvr", "all real data": "whole_data"}
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [row["distance"] for row in numbers.values()],
            "y": [row[key] - row["before"] for row in numbers.values()],
            "text": [text(name) for name in numbers],
            "name": name,
            "marker": {"color": style(i).color, "size": 9 + 6 * i, "symbol": ("circle", "diamond-open")[i]},
            "hovertemplate": "%{text}: distance %{x:.3f}, gain %{y:.2f}<extra>%{fullData.name}</extra>",
        }
        for i, (name, key) in enumerate(gains.items())
    ]
    layout = {
        "xaxis": axis("mean sliced Wasserstein distance between classes"),
        "yaxis": axis("gain in accuracy (points)"),
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.12},
    }
    head = ["run", "distance", "forecast", "before", "ccvr", "whole_data"]
    body: list[list[Cell | str]] = [[name, *(_number(row[k]) for k in head[1:])] for name, row in numbers.items()]
    figure = chart(id, id, {"": Chart(data, layout)}, "Separability against the gain of calibration", where)
    return panels([figure]) + table(f"{id}-table", head, body)


def _number(value: Any) -> Cell:
    return Cell("–") if value is None else Cell(f"{float(value):.4g}", float(value))


_KINDS: dict[str, tuple[str, Callable[[Mapping[str, Any], str, str], str]]] = {
    "norms": ("Head norms", _norms),
    "cka": ("Similarity of the clients' models (CKA)", _cka),
    "collapse": ("Neural collapse", _collapse),
    "separability": ("Separability and calibration", _separability),
}
