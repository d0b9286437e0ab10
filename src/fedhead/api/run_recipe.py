"""`fedhead.run_recipe`: run a recipe in a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from fedhead.core.system.errors import require
from fedhead.engine.experiment.compute import Compute
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.recipes.component_kinds import LOGGER_KIND
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import run
from fedhead.runs.progress import Progress
from fedhead.runs.run_folder_schema import CONFIG, METRICS, read_rows


def run_recipe(
    recipe: str | PathLike[str],
    assignments: Sequence[str] = (),
    *,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    allow_changed_code: bool = False,
    data_dir: str | PathLike[str] | None = None,
    device: str = "auto",
    executor: str = "auto",
    precision: str = "fp32",
    compile: str = "auto",
    threads: int | None = None,
    loggers: Sequence[Logger | type[Logger] | str] = (),
    progress: bool = False,
) -> Row:
    """Run a recipe like `fedhead run`.

    Args:
        recipe: Name of a built-in recipe, or recipe file.
        assignments: Overrides of the recipe, such as `"rounds=5"`.
        out: Run folder; None: a new one under runs/.
        resume: Resume an interrupted run; a finished one is not changed.
        allow_changed_code: Resume even if your code has changed.
        data_dir: Folder of the data sets; None: the default one.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        executor: `"auto"`, a name that `fedhead ls executors` lists, or your own by name.
        precision: `"fp32"`, `"tf32"` or `"bf16"`.
        compile: Compilation of steps on a GPU, as in `fedhead.run`.
        threads: CPU threads; None: by the size of the model.
        loggers: Loggers in addition to those of the recipe, as in `fedhead.run`.
        progress: Show a progress bar.

    Returns:
        The final results in the format of `result.json`.

    Raises:
        BadInput: An argument is invalid, or arguments are incompatible.
        RunInterrupted: Ctrl-C, with the folder and the rounds of the run.
    """
    require(not resume or out is not None, "--resume needs --out (resume needs out): name the run folder to continue")
    wanted = load(str(recipe), assignments)
    compute = Compute(
        None if data_dir is None else Path(data_dir), device, executor, precision, threads, compile, allow_changed_code
    )
    folder = _new_folder(recipe, wanted) if out is None else Path(out)
    made_loggers = LOGGER_KIND.build(loggers, wanted.folders)
    with Progress(quiet=not progress) as bar:
        observers = [bar.observer(wanted.method, wanted.rounds)]
        try:
            return run.execute(wanted, folder, compute, resume=resume, observers=observers, loggers=made_loggers)
        except KeyboardInterrupt as interrupt:
            raise RunInterrupted(folder, wanted.rounds) from interrupt


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run.

    Args:
        out: Folder of the interrupted run.
        rounds: Number of rounds of the run.
    """

    def __init__(self, out: Path, rounds: int):
        done = len(read_rows(out / METRICS))
        where = f"after round {done} of {rounds}" if done else "before the first round"
        self.out = out if (out / CONFIG).exists() else None
        super().__init__(f"stopped {where}" + ("" if self.out else "; nothing was written"))


def _new_folder(source: str | PathLike[str], recipe: Recipe) -> Path:
    """Return an unused folder under runs/, named after the recipe and its method."""
    name = f"{Path(source).stem}-{recipe.method.rpartition(':')[2]}"
    return unused(Path("runs") / f"{name}-seed{recipe.seed}")


def unused(path: Path) -> Path:
    """Return the path, or the first of path-2, path-3 … that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
