"""Whole `fedhead run` commands by the clock, for `targets.py`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from command_profile import sample_gpu

HERE = Path(__file__).parent
ROUND = re.compile(r": round (\d+)\b")


class Command(NamedTuple):
    """Times of a `fedhead run`, in seconds since it was started.

    Args:
        whole: Until it ended.
        first: Until the line of its first round.
        last: Until the line of its last round.
        busy: How busy the GPU was between the two, in percent; none without nvidia-smi.
    """

    whole: float
    first: float
    last: float
    busy: float | None


def data(options: argparse.Namespace) -> list[str]:
    """Return the assignments that put random images in place of CIFAR-10, unless there is a folder with it."""
    if options.data and not options.tiny:
        return []
    name = "few_images" if options.tiny else "images"
    return [f"dataset={HERE / 'targets_data.py'}:{name}", "augment=cifar", "normalize=cifar10"]


def run(
    words: Sequence[str],
    options: argparse.Namespace,
    precision: str,
    caches: Path | None = None,
    compile: str = "auto",
) -> Command:
    """Carry out `fedhead run`, and note when the lines of its first and last round came.

    Args:
        words: Recipe and assignments.
        options: Device and data folder.
        precision: What to compute in.
        caches: Folder of the compilers' caches; none: the usual ones.
        compile: When steps are compiled, as in `fedhead run --compile`.

    Raises:
        RuntimeError: If it failed.
    """
    env = dict(os.environ)
    if caches is not None:
        env |= {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    more = ["--data-dir", options.data] if options.data and not options.tiny else []
    busy: list[int] = []
    shares: list[int] = []
    lines: list[str] = []
    times: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        given = {word.partition("=")[0]: word for word in words}.values()  # a later value replaces an earlier one
        command = [sys.executable, "-m", "fedhead", "run", *given, "--out", f"{out}/run", *more]
        command += ["--device", options.device, "--precision", precision, "--compile", compile]
        sampler = sample_gpu(busy) if options.device != "cpu" else None
        begin = time.perf_counter()
        with subprocess.Popen(
            command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None, "it is a pipe"
            for line in process.stderr:
                lines.append(line)
                if ROUND.search(line):
                    if not times:
                        busy.clear()
                    times.append(time.perf_counter() - begin)
                    shares = list(busy)
            failed = process.wait() != 0
        whole = time.perf_counter() - begin
        if sampler is not None:
            sampler.terminate()
    if failed or not times:
        raise RuntimeError(f"fedhead run {' '.join(words)} failed:\n{''.join(lines)[-3000:]}")
    return Command(whole, times[0], times[-1], sum(shares) / len(shares) if shares else None)


def steps_per_round(words: Sequence[str], options: argparse.Namespace) -> int:
    """Return how many steps all clients of a recipe take in a round, where all of them take part."""
    from fedhead.core.training.batching import steps_per_epoch
    from fedhead.recipes import recipe_data as recipe_data
    from fedhead.recipes.recipe import load

    recipe = load(words[0], words[1:])
    sizes = recipe_data.federation(recipe, options.data).sizes
    assert isinstance(recipe.local_epochs, int), "the recipes here have one number"
    return recipe.local_epochs * sum(steps_per_epoch(n, recipe.batch_size, recipe.drop_last) for n in sizes)
