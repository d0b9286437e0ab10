"""`fedhead.run_recipe`: run a recipe in a run folder, once per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from fedhead.core.system.errors import Diverged, FedheadError, require
from fedhead.engine.experiment.compute import Compute
from fedhead.loggers.base import Logger
from fedhead.metrics.averages import mean_and_deviation
from fedhead.metrics.records import Row
from fedhead.recipes.parts import LOGGER_PART
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import run
from fedhead.runs.progress import Progress
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG, METRICS, DamagedRun, read_rows

MEANS = ("accuracy", "accuracy_mean", "personal")  # results that are averaged over runs


def run_recipe(
    recipe: str | PathLike[str],
    assignments: Sequence[str] = (),
    *,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    allow_changed_code: bool = False,
    data: str | PathLike[str] | None = None,
    device: str = "auto",
    executor: str = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    threads: int | None = None,
    loggers: Sequence[Logger | type[Logger] | str] = (),
    progress: bool = False,
) -> Row:
    """Run a recipe like `fedhead run`: once, or once per seed.

    Each run has its own folder. With several seeds, a diverged run or a damaged folder does not stop the others. It is
    listed under `failed` and excluded from the means.

    Args:
        recipe: Name of a built-in recipe, or recipe file.
        assignments: Overrides of the recipe, such as `"rounds=5"`.
        out: Run folder; with several seeds, the parent of their folders (`seed0` and so on). None: a new one under
            runs/.
        resume: Resume interrupted runs; finished ones are not changed.
        allow_changed_code: Resume even if your code has changed.
        data: Folder of the data sets; None: the default one.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        executor: `"auto"`, a name that `fedhead ls executors` lists, or your own by name.
        precision: `"fp32"`, `"tf32"` or `"bf16"`.
        compile: Compilation of steps on a GPU, as in `fedhead.run`.
        threads: CPU threads; None: by the size of the model.
        loggers: Loggers in addition to those of the recipe, as in `fedhead.run`.
        progress: Show a progress bar.

    Returns:
        The final results in the format of `result.json`; with several seeds, means and deviations, and the single
        results under `runs`.

    Raises:
        BadInput: An argument is invalid, or arguments are incompatible.
        FedheadError: No run has a result.
        RunInterrupted: Ctrl-C, with the folder and the rounds of the run.
    """
    require(not resume or out is not None, "--resume needs --out (resume needs out): name the run folder to continue")
    wanted = load(str(recipe), assignments)
    compute = Compute(
        None if data is None else Path(data), device, executor, precision, threads, compile, allow_changed_code
    )
    folder = _new_folder(recipe, wanted) if out is None else Path(out)
    runs = {folder: wanted}
    if wanted.seeds:
        runs = {folder / f"seed{seed}": wanted.override([f"seed={seed}"]) for seed in wanted.seeds}
    if resume:  # check all recipes before the first run starts
        for place, planned in runs.items():
            with suppress(DamagedRun):  # the run itself reports it
                if RunFolder.holds_run(place):
                    RunFolder.open(place).check_continued_by(planned)
    made_loggers = LOGGER_PART.build(loggers, wanted.folders)
    results: list[Row] = []
    failed: dict[str, str] = {}
    with Progress(quiet=not progress) as bar:
        for number, (place, planned) in enumerate(runs.items()):
            label = f"{planned.method} (seed {planned.seed})" if len(runs) > 1 else planned.method
            observer = bar.observer(label, len(runs) * planned.rounds, number * planned.rounds)
            try:
                result = run.execute(planned, place, compute, resume=resume, observers=[observer], loggers=made_loggers)
            except KeyboardInterrupt as interrupt:
                raise RunInterrupted(folder, place, planned.rounds) from interrupt
            except (Diverged, DamagedRun) as error:
                if not wanted.seeds:
                    raise
                failed[f"seed {planned.seed}"] = str(error)
            else:
                results.append(result)
    if not wanted.seeds:
        return results[0]
    if not results:
        raise_failed(failed)
    return {"run": str(folder), **_averaged(results), "failed": failed}


def raise_failed(failed: Mapping[str, str]) -> None:
    """Raise `FedheadError` if any run failed."""
    if failed:
        reasons = "; ".join(f"{name} is in no mean: {why}" for name, why in failed.items())
        raise FedheadError(f"{reasons}; fix it, and the same command runs what failed again")


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run.

    Args:
        out: Argument `out` of `run_recipe` to resume.
        folder: Folder of the interrupted run.
        rounds: Number of rounds of the run.
    """

    def __init__(self, out: Path, folder: Path, rounds: int):
        done = len(read_rows(folder / METRICS))
        where = f"after round {done} of {rounds}" if done else "before the first round"
        self.out = out if (folder / CONFIG).exists() else None
        super().__init__(f"stopped {where}" + ("" if self.out else "; nothing was written"))


def _new_folder(source: str | PathLike[str], recipe: Recipe) -> Path:
    """Return an unused folder under runs/, named after the recipe and its method."""
    name = f"{Path(source).stem}-{recipe.method.rpartition(':')[2]}"
    return unused(Path("runs") / (name if recipe.seeds else f"{name}-seed{recipe.seed}"))


def unused(path: Path) -> Path:
    """Return the path, or the first of path-2, path-3 … that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _averaged(results: Sequence[Row]) -> Row:
    """Return means and deviations over runs, and the single results."""
    metrics = results[0].get("metrics") or {}
    stages = {
        name: {
            word: mean_and_deviation(r["stages"][name][word] for r in results)[0] for word in ("accuracy", "personal")
        }
        for name in results[0]["stages"]
    }
    return {
        **{name: mean_and_deviation(r[name] for r in results)[0] for name in MEANS},
        "deviation": {name: mean_and_deviation(r[name] for r in results)[1] for name in MEANS},
        "metrics": {name: mean_and_deviation(r["metrics"][name] for r in results)[0] for name in metrics},
        "stages": stages,
        **{name: sum(r.get(name) or 0 for r in results) for name in ("bytes_up", "bytes_down", "seconds", "preparing")},
        "seed": [r["seed"] for r in results],
        "runs": list(results),
    }
