"""The commands analyse and figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import ColumnWidth, DataFolder, Device
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import require

Kind = Annotated[
    str | None, Argument("Analysis: a name, or file.py:function. Without one, the names are listed.", label="KIND")
]
Runs = Annotated[list[Path] | None, Argument("Run folders, or folders that contain run folders.", label="RUN")]
SampleCount = Annotated[int | None, AtLeast(2), Option("Number of samples to use.")]
Rounds = Annotated[str, Option("Rounds that norms and collapse repeat, such as 1,5-10.")]
Seed = Annotated[int, AtLeast(0), Option("Seed of the samples that are drawn.")]
MetricName = Annotated[str, Option("Metric that learning draws.")]


@command("Look into")
def analyse(
    kind: Kind = None,
    runs: Runs = None,
    samples: SampleCount = None,
    rounds: Rounds = "1",
    seed: Seed = 0,
    metric: MetricName = "accuracy",
    out: Annotated[Path | None, Option("Output folder. [default: analysis/ in the first run]")] = None,
    data_dir: DataFolder = None,
    device: Device = "auto",
    as_json: Annotated[bool, Option("Print the numbers as JSON.", flag="--json")] = False,
) -> None:
    """Analyze a trained run, and write numbers and figures into its folder.

    The numbers are printed; KIND.json and KIND.png are written. To analyze local models, every client trains one more
    round after the last.

    Examples:
      fedhead analyse
      fedhead analyse cka runs/iid runs/noniid
      fedhead analyse norms runs/noniid --rounds 1,5
      fedhead analyse embed runs/noniid --samples 500
      fedhead analyse features runs/local runs/fedclassavg
      fedhead analyse collapse runs/fedavg runs/fedetf --rounds 1-10
    """
    from fedhead.core.system.atomic_file import atomic
    from fedhead.papers.analyses.registry import AnalysisOptions
    from fedhead.papers.analyses.run_analysis import analyze, lines
    from fedhead.report.style import save

    if kind is None:
        _list_kinds()
        return
    options = AnalysisOptions(samples, _numbers(rounds), seed, metric)
    places, report = analyze(kind, runs or [], options, data_dir, device)
    folder, kind = out or places[0] / "analysis", kind.rpartition(":")[2]
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / f"{kind}.json") as draft:
        draft.write_text(json.dumps(report.numbers, indent=1) + "\n", encoding="utf-8")
    for ending, drawn in report.figures.items():
        save(drawn, folder / f"{kind}{ending}.png")
    if as_json:
        print(json.dumps(report.numbers))
        return
    for line in lines(report.numbers):
        print(line)
    print(f"written to {', '.join([f'{folder / kind}.json', *(f'{kind}{e}.png' for e in report.figures)])}")


@command("Compare")
def figure(
    kind: Kind = None,
    runs: Runs = None,
    out: Annotated[Path | None, Option("Output file: .pdf, .png or .svg. [default: KIND.pdf]")] = None,
    width: ColumnWidth = 2,
    samples: SampleCount = None,
    rounds: Rounds = "1",
    seed: Seed = 0,
    metric: MetricName = "accuracy",
    data_dir: DataFolder = None,
    device: Device = "auto",
) -> None:
    """Draw a figure as in the papers from your own runs, ready for print, and write its numbers as CSV beside it.

    Text has at least 7 pt. KIND is an analysis, as in `fedhead analyse`. If it draws several figures, the others are
    written beside OUT, such as OUT-means for cka.

    Examples:
      fedhead figure
      fedhead figure learning runs/* --out curves.pdf
      fedhead figure labels runs/noniid --width 1 --out split.pdf
      fedhead figure cka runs/iid runs/noniid --width 1 --out cka.pdf
    """
    from fedhead.papers.analyses.registry import AnalysisOptions
    from fedhead.papers.analyses.run_analysis import analyze, write_csv
    from fedhead.report.style import WIDTHS, save

    if kind is None:
        _list_kinds()
        return
    options = AnalysisOptions(samples, _numbers(rounds), seed, metric, WIDTHS[width])
    path = out or Path(f"{kind.rpartition(':')[2]}.pdf")
    report = analyze(kind, runs or [], options, data_dir, device)[1]
    for ending, drawn in report.figures.items():
        place = path.with_name(f"{path.stem}{ending}{path.suffix}")
        save(drawn, place)
        print(f"written to {place}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(report.numbers, path.with_suffix(".csv"))
    print(f"written to {path.with_suffix('.csv')}")


def _list_kinds() -> None:
    from fedhead.papers.analyses.registry import ANALYSES

    for name, entry in ANALYSES.items():
        print(f"{name:<14}{entry.description}")


def _numbers(text: str) -> list[int]:
    """Read whole numbers and spans, such as 1,5-10."""
    try:
        spans = [word.partition("-") for word in text.split(",") if word.strip()]
        numbers = [range(int(first), int(last or first) + 1) for first, _, last in spans]
    except ValueError:
        numbers = [range(0)]
    require(all(numbers), f"--rounds {text!r}: write whole numbers or rising spans with commas between: 1,5-10")
    return sorted({r for span in numbers for r in span})
