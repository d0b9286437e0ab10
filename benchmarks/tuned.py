"""The leaderboard of docs/leaderboard.md: every method at settings that `fedhead tune` has found, and at its defaults.

    python benchmarks/tuned.py [--only fedprox,ditto] [--runs runs/leaderboard]
    python benchmarks/tuned.py --page

searches for the learning rate and the main hyperparameters of each method on one split of the digits by
Dirichlet(0.1), trains what it finds and the method's defaults with ten other seeds (and so ten other splits), and
writes the page. Each study is committed as results/tuning/digits/OBJECTIVE-METHOD/trials.csv with its best.yaml, each
final run is a row of results/tuning/digits/leaderboard.csv. What is there already is not run again. The search reads no
test samples. --page writes the page alone, from those files. About 10 minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import fedhead as fh
from fedhead.core.system.atomic_file import atomic
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe, load
from fedhead.report.compare.statistics import interval
from fedhead.runs.run import execute

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "tuning" / "digits", ROOT / "docs" / "leaderboard.md"
TRIALS, SEARCH_SEED, SEEDS = 16, 1000, range(10)
SETTINGS = (
    f"seed={SEARCH_SEED}",
    "model=mlp(hidden=[64])",
    "local_epochs=2",
    "client_test=matched",
    "evaluate_every=5",
)
LR = "lr=log(0.005, 0.5)"
COLUMNS = ("objective", "method", "setting", "seed", "value")
# What is searched of a method besides the learning rate; the papers' baselines are searched over the same ranges.
RANGES = {
    "fedavg": (),
    "local": (),
    "fedprox": ("method.mu=log(1e-4, 1)",),
    "clsprox": ("method.mu=log(1e-4, 1)",),
    "fedavgm": ("method.beta=uniform(0, 0.95)",),
    "scaffold": ("method.server_lr=uniform(0.3, 1.5)",),
    "feddyn": ("method.alpha=log(1e-4, 1)",),
    "moon": ("method.mu=log(0.01, 10)",),
    "fedrod": ("method.gamma=uniform(0, 2)",),
    "fedetf": ("method.gamma=uniform(0, 2)",),
    "fednh": ("method.rho=uniform(0.5, 0.99)",),
    "ditto": ("method.lam=log(0.01, 10)",),
    "fedrep": (),
    "fedproto": ("method.lam=log(0.01, 10)",),
    "fedclassavg": ("method.rho=log(1e-3, 10)",),
}
BOARDS = {
    "accuracy": ("fedavg", "fedprox", "clsprox", "fedavgm", "scaffold", "feddyn", "moon", "fedrod", "fedetf", "fednh"),
    "personal": ("fedavg", "local", "ditto", "fedrep", "fedrod", "fedproto", "fedclassavg", "fedetf"),
}
TITLES = {
    "accuracy": "The global model",
    "personal": "The clients' personalized models",
}
PAPERS = """The papers' baselines are searched over the same ranges at their own scale by `benchmarks/tuned_papers.py`,
which takes the recipe from a cell of a [paper's table](reproducing.md):

```console
$ python benchmarks/tuned_papers.py ccvr/table2 'cifar10-0.1 fedprox before' rounds=20 --device cuda
```"""


@dataclass(frozen=True)
class Entry:
    """A method on one of the two boards."""

    objective: str
    method: str

    @property
    def folder(self) -> Path:
        """Where its study is committed."""
        return RESULTS / f"{self.objective}-{self.method}"

    @property
    def assignments(self) -> list[str]:
        """Return what the search is given besides the recipe."""
        return [f"method={self.method}", *SETTINGS, LR, *RANGES[self.method]]

    @property
    def command(self) -> str:
        """The search as a command."""
        words = ["fedhead", "tune", "digits", *self.assignments, "--objective", self.objective]
        return shlex.join([*words, "--trials", str(TRIALS)])

    @property
    def defaults(self) -> Recipe:
        """The recipe with the method's own defaults."""
        return load("digits", [f"method={self.method}", *SETTINGS])


def entries() -> list[Entry]:
    """Return all methods of both boards."""
    return [Entry(objective, method) for objective, methods in BOARDS.items() for method in methods]


def search(entry: Entry, runs: Path) -> Recipe:
    """Return the best setting that a study found; the study is made where there is none."""
    if not (entry.folder / "best.yaml").exists():
        place = runs / f"{entry.objective}-{entry.method}"
        settings = Compute(device="cpu")
        out, objective = place / "study", entry.objective
        fh.tune("digits", *entry.assignments, out=out, trials=TRIALS, objective=objective, compute=settings)
        entry.folder.mkdir(parents=True, exist_ok=True)
        for name in ("trials.csv", "best.yaml"):
            shutil.copyfile(out / name, entry.folder / name)
    return load(entry.folder / "best.yaml")


def train(entry: Entry, setting: str, recipe: Recipe, runs: Path) -> Iterator[dict[str, object]]:
    """Train a setting with every seed, and yield one row each."""
    place = runs / f"{entry.objective}-{entry.method}" / setting
    place.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        result = execute(replace(recipe, seed=seed), place / f"seed-{seed}", Compute(device="cpu"), resume=True)
        value = f"{result[entry.objective]:.3f}"
        yield dict(zip(COLUMNS, (entry.objective, entry.method, setting, seed, value), strict=True))


def measure(chosen: Sequence[Entry], runs: Path) -> None:
    """Search and train what the committed files lack."""
    for entry in chosen:
        best = search(entry, runs)
        rows = read_rows()
        for setting, recipe in (("tuned", best), ("default", entry.defaults)):
            held = {(row["objective"], row["method"], row["setting"]) for row in rows}
            if (entry.objective, entry.method, setting) not in held:
                rows += [{k: str(v) for k, v in row.items()} for row in train(entry, setting, recipe, runs)]
                print(f"{entry.objective} {entry.method} {setting}: {fmean(values(rows, entry, setting)):.2f}")
        with atomic(RESULTS / "leaderboard.csv") as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


# -- the page -----------------------------------------------------------------------------------------
Rows = list[dict[str, str]]


def read_rows() -> Rows:
    """Return the final runs that are committed."""
    path = RESULTS / "leaderboard.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def values(rows: Rows, entry: Entry, setting: str) -> list[float]:
    """Return an entry's values, in the order of the seeds."""
    key = (entry.objective, entry.method, setting)
    mine = {int(row["seed"]): row["value"] for row in rows if (row["objective"], row["method"], row["setting"]) == key}
    return [float(mine[seed]) for seed in sorted(mine)]


def shown(found: list[float], baseline: list[float]) -> str:
    """Return a mean with its deviation, and the interval of the paired differences from the baseline."""
    text = f"{fmean(found):.1f} ± {stdev(found):.1f}"
    between = interval([a - b for a, b in zip(found, baseline, strict=True)])
    return text if found == baseline or between is None else f"{text} ({between[0]:+.1f} … {between[1]:+.1f})"


def board(rows: Rows, objective: str) -> Iterator[str]:
    """Yield the lines of a board, the best tuned method first."""
    mine = [entry for entry in entries() if entry.objective == objective and values(rows, entry, "tuned")]
    first = mine[0]
    yield "| method | tuned | default | found |"
    yield "|---|--:|--:|---|"
    for entry in sorted(mine, key=lambda one: -fmean(values(rows, one, "tuned"))):
        columns = [
            shown(values(rows, entry, setting), values(rows, first, setting)) for setting in ("tuned", "default")
        ]
        best = load(entry.folder / "best.yaml").flat()
        keys = [text.partition("=")[0] for text in (LR, *RANGES[entry.method])]
        chosen = ", ".join(f"{key.removeprefix('method.')} {best[key]:.3g}" for key in keys)
        study = f"../results/tuning/digits/{entry.folder.name}/trials.csv"
        yield f"| `{entry.method}` | {columns[0]} | {columns[1]} | [{chosen}]({study}) |"


def carried_over(rows: Rows) -> str:
    """Return how often what was found on one split is better on the others."""
    mine = [entry for entry in entries() if values(rows, entry, "tuned")]
    gains = [[a - b for a, b in zip(values(rows, e, "tuned"), values(rows, e, "default"), strict=True)] for e in mine]
    better = sum(fmean(one) > 0 for one in gains)
    intervals = [interval(one) or (0.0, 0.0) for one in gains]
    most = min(zip(gains, mine, strict=True), key=lambda one: fmean(one[0]))[1]
    above, below = sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)
    return f"""Settings tuned on one split do not always win on others: of the {len(mine)} rows above, {better}
have a higher mean when tuned. The interval of the paired difference lies above 0 for {above} of them, and below 0 for
{below}. The split has about 210 validation samples, and large steps that win there can be too large elsewhere;
`{most.method}` loses most by them. Search on your own split, or compare the best few settings over several seeds."""


def page(rows: Rows) -> str:
    """Return the page."""
    usual, seeds = load("digits"), f"{SEEDS[0]} to {SEEDS[-1]}"
    intro = f"""# Leaderboard

Fifteen methods at settings that [`fedhead tune`](tuning.md) found, and at their defaults. Digits, {usual.clients}
clients by Dirichlet(0.1), an MLP with 64 hidden units, {usual.rounds} rounds of 2 local epochs
(`fedrep`: 10 of the head and 1 of the body); per cent, mean ± deviation over seeds {seeds}. In brackets: 95 %
t-interval of the difference from FedAvg in the same column, paired by seed."""
    notes = f"""## Notes

- The intervals are without a correction for the number of methods.
- *default* are the method's defaults in the recipe `digits`. *found* has the chosen values and leads to the trials of
  the study; `best.yaml` beside it is the recipe. The values of all runs are in
  `results/tuning/digits/leaderboard.csv`.
- Each search has {TRIALS} trials (TPE, median pruning) over the learning rate and the method's main hyperparameter, on
  one split (seed {SEARCH_SEED}) and on 15 % validation samples. It reads no test samples.
- Each setting is then trained on all training samples, with another split per seed, and tested on the test samples.
- `python benchmarks/tuned.py` writes this page.

{carried_over(rows)}

One small data set, one model and few rounds: it shows what tuning changes, not which method is best on your data.
For that, [compare them there](choosing.md#measure-it-on-your-data)."""
    lines = [intro]
    for objective, title in TITLES.items():
        lines += ["", f"## {title}", "", *board(rows, objective)]
    lines += ["", notes]
    lines += ["", "## The searches", "", "```console"]
    lines += [f"$ {entry.command}" for entry in entries()]
    lines += ["```", "", PAPERS]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Search, train and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="methods, with commas between")
    parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("--page", action="store_true", help="write the page alone")
    asked = parser.parse_args()
    fh.tune_malloc()
    only = asked.only.split(",") if asked.only else list(RANGES)
    if not asked.page:
        measure([entry for entry in entries() if entry.method in only], asked.runs)
    PAGE.write_text(page(read_rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
