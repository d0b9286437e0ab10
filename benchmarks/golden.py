"""Record golden numbers of short runs, and compare them bit for bit after the code has changed.

    python golden.py record FILE.json [--only REGEX]
    python golden.py compare FILE.json [--only REGEX]     # exit code 1 where anything differs

Each case is a short run on the CPU, in one thread. Its states are stored as SHA-256 digests, its records as numbers;
times are left out. Digests hold for one machine and one version of torch: record again where either changes.
Everything goes through the public interface, except for the functions under "adapters".
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch is imported

import argparse
import contextlib
import functools
import hashlib
import io
import json
import logging
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

import fedhead as fh

Items = dict[str, Any]  # what is stored of a case, by name
CASES: dict[str, Callable[[Path], Items]] = {}
BOTH = ("loop", "stack")
MIXED = ("fedclassavg", "fedproto", "ktpfl", "local")  # methods whose clients may differ in architecture
MLP, OTHER_MLP = "mlp(hidden=[32])", "mlp(hidden=[24, 32])"
COMMON = {"rounds": 3, "batch_size": 32, "lr": 0.05, "momentum": 0.9, "participation": 0.5, "device": "cpu"}
TIMES = ("seconds", "compile_seconds")  # entries of records that no repetition gives again
SHORT = {"ccvr": "ccvr(samples=100, epochs=2)", "recalibrate": "recalibrate(epochs=3)"}
SHORT["finetune_ccvr"] = "finetune_ccvr(samples=100)"


# -- adapters: the only functions that use more than the public interface ---------------------------------------------
def stage_clients(stage: fh.StageResult) -> dict[int, Any]:
    """Return what each client kept after a stage: the states as the simulation holds them. INTERNAL: states.kept."""
    return {} if stage.states is None else dict(getattr(stage.states, "kept", stage.states))


def over_flower(method: fh.Method, models: dict[str, Any], stages: list[Any], out: Path) -> tuple[Any, Items]:
    """Run over Flower's messages inside this process. INTERNAL: `fedhead.testing.inprocess` and `fedhead.engine`.

    Args:
        method: The method.
        models: The models by name; client k has number k modulo their count.
        stages: What follows the rounds.
        out: An empty folder, in which the sites keep their states.

    Returns:
        The finished run, with rows, server, stages and bytes; and digests of what every site has on its disk.
    """
    from fedhead.engine.experiment.experiment import Experiment, Schedule
    from fedhead.engine.rounds.rounds import run
    from fedhead.testing.inprocess import InProcessFederation

    fed, names = federation(), list(models)
    local = fh.LocalTraining(epochs=1, batch_size=32, optimizer=fh.SGD(0.05, 0.9))
    own = {k: names[k % len(names)] for k in range(len(fed))} if len(names) > 1 else {}
    schedule = Schedule(rounds=3, participation=0.5)
    experiment = Experiment(method, tuple(models.values()), local, schedule, tuple(stages))
    world = InProcessFederation(fed, models, experiment, out, own)
    finished = run(world.transport(world.grid(), round_seconds=60.0, attempts=1))
    files = sorted(out.rglob("*.safetensors"))
    return finished, {str(path.relative_to(out)): digest(load_file(path)) for path in files}


# -- data and models --------------------------------------------------------------------------------------------------
@functools.cache
def federation(images: bool = False, **settings: Any) -> fh.Federation:
    """Return 700 digits over six clients by Dirichlet(0.3), as vectors or as images, with 60 public samples."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    if images:
        x, settings = x.reshape(-1, 8, 8), {"layout": "nhw", **settings}
    public = (x[900:960], y[900:960])
    settings = {"test": (x[700:900], y[700:900]), "client_test": 0.2, "public": public, **settings}
    return fh.Federation.from_arrays(x[:700], y[:700], "dirichlet(0.3)", clients=6, seed=0, **settings)


def network(norm: str) -> fh.SplitModel:
    """Return a small convolutional network for the images, with "batch" or "group" normalization."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)]
        layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 10)]
        return fh.split(nn.Sequential(*layers), classifier="7")


# -- digests ----------------------------------------------------------------------------------------------------------
def leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """Return all tensors, arrays and plain values of a nested dictionary, by their dotted names."""
    if not isinstance(tree, Mapping):
        return {name: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{name}.{key}" if name else str(key))
    return found


def digest(tree: Any) -> str:
    """Return the SHA-256 of all names, types, shapes and raw bytes, in the order of the names."""
    found = hashlib.sha256()
    for name, value in sorted(leaves(tree).items()):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
            kind, raw = (value.dtype, tuple(value.shape)), value.reshape(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(value, np.ndarray):
            kind, raw = (value.dtype, value.shape), value.tobytes()
        else:
            kind, raw = type(value).__name__, json.dumps(value, default=str).encode()
        found.update(f"{name} {kind} ".encode() + raw)
    return found.hexdigest()


def columns(rows: list[dict[str, Any]]) -> Items:
    """Return each column of records: the values where they are single numbers or words, otherwise their digest."""
    names = sorted({name for row in rows for name in row} - set(TIMES))
    found = {name: [row.get(name) for row in rows] for name in names}
    plain = (bool, int, float, str, type(None))
    single = {name: all(isinstance(value, plain) for value in values) for name, values in found.items()}
    return {name: values if single[name] else digest({"": values}) for name, values in found.items()}


def items(result: Any, clients: Mapping[Any, Any]) -> Items:
    """Return what is stored of a finished run, whose clients kept these states."""
    stages = {}
    for name, stage in result.stages.items():
        kept = {} if result.executor == "flower" else stage_clients(stage)
        own = {str(k): digest(state) for k, state in sorted(kept.items())}
        stages[name] = {"server": digest(stage.server), "clients": own, "rows": columns([result.stage_rows[name]])}
    kept = {str(k): state if isinstance(state, str) else digest(state) for k, state in sorted(clients.items())}
    sent = {"bytes_up": result.bytes_up, "bytes_down": result.bytes_down, "executor": result.executor}
    return {"server": digest(result.server), "clients": kept, "rows": columns(result.rows), "stages": stages, **sent}


def case(name: str, run: Callable[[Path], Any]) -> None:
    """Enter a case; `run` is called with an empty folder and returns a result or its items."""
    assert name not in CASES, f"{name} is there twice"

    def stored(folder: Path) -> Items:
        found = run(folder)
        return found if isinstance(found, dict) else items(found, found.states)

    CASES[name] = stored


def simulated(
    name: str, fed: Callable[[], fh.Federation], model: Callable[[], Any], *what: Any, **settings: Any
) -> None:
    """Enter a case of `fh.run`; data and model are made when it is run."""
    case(name, lambda folder: fh.run(fed(), model(), *what, **{**COMMON, **settings}))


# -- the cases --------------------------------------------------------------------------------------------------------
def images() -> fh.Federation:
    """Return the federation of images."""
    return federation(images=True)


def method_cases() -> None:
    """Enter every method on both executors, with different architectures where it allows them, and with BatchNorm."""
    for how in BOTH:
        for name in sorted(fh.METHODS):
            simulated(f"{how}/{name}", federation, lambda: MLP, name, executor=how)
            conv = functools.partial(built_in_head, name)
            simulated(f"{how}/{name}/bn", images, conv, name, executor=how, rounds=2)
        for name in MIXED:
            simulated(f"{how}/{name}/mixed", federation, lambda: [MLP, OTHER_MLP], name, executor=how)
        simulated(f"{how}/ktpfl/all", federation, lambda: MLP, fh.KTpFL(share="all"), executor=how)
        simulated(f"{how}/fedclassavg/augmented", augmented, lambda: network("group"), "fedclassavg", executor=how)


def augmented() -> fh.Federation:
    """Return the federation of images with random crops and flips."""
    return federation(images=True, augment="crop(1)+flip")


def built_in_head(method: str) -> Any:
    """Return the network with BatchNorm and the head that a method needs."""
    head = fh.METHODS[method].head
    return network("batch") if head is None else fh.with_head(network("batch"), head)


OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"weight_decay": 1e-3, "nesterov": True, "lr_decay": 0.9},
    "adam": {"optimizer": "adam", "lr": 1e-3, "momentum": 0.0, "betas": (0.5, 0.99)},
    "adamw": {"optimizer": "adamw", "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.01},
    "persistent_sgd": {"persistent_optimizer": True},
    "persistent_adam": {"persistent_optimizer": True, "optimizer": "adam", "lr": 1e-3, "momentum": 0.0},
    "clip_norm": {"clip_norm": 0.5},
    "label_smoothing": {"label_smoothing": 0.1},
    "class_weights_balanced": {"class_weights": "balanced"},
    "class_weights_per_client": {"class_weights": "balanced_per_client"},
    "cosine": {"lr_schedule": "cosine", "warmup_rounds": 1},
    "step": {"lr_schedule": "step(1, 0.1)"},
    "local_steps": {"local_steps": 3},
    "local_epochs_drawn": {"local_epochs": "uniform(1, 3)"},
    "drop_last": {"drop_last": True},
    "stragglers_drop": {"stragglers": "drop(0.4)", "participation": 1.0},
    "stragglers_partial": {"stragglers": "partial(0.5)", "participation": 1.0},
    "sampler_weighted": {"sampler": "weighted"},
    "sampler_round_robin": {"sampler": "round_robin"},
    "upload_clip": {"uploads": ["clip(0.1)"]},
    "upload_half": {"uploads": ["half"]},
    "upload_both": {"uploads": ["clip(0.1)", "half"]},
    "outliers_drop": {"outliers": "drop(norm=1.05)", "participation": 1.0},
    "outliers_clip": {"outliers": "clip(norm=1.05)", "participation": 1.0},
    "metrics": {"metrics": ["balanced_accuracy", "nll", "ece", "auroc", "worst_client"], "evaluate_every": 2},
    "callbacks": {"validation": 0.2, "rounds": 6, "lr": 0.2, "callbacks": ["early_stopping(patience=1)", "best_model"]},
    "frozen": {"freeze": ["extractor"]},
}


def option_cases() -> None:
    """Enter every option with BatchNorm (on both executors) and GroupNorm (alternating), and what needs other data."""
    options = {**OPTIONS}
    options |= {f"aggregator_{name}": {"aggregator": name, "participation": 1.0} for name in sorted(fh.AGGREGATORS)}
    for number, (name, given) in enumerate(options.items()):
        given = {"rounds": 2, **given}
        simulated(f"options/{name}/bn", images, lambda: network("batch"), executor="loop", **given)
        simulated(f"options/{name}/bn/stack", images, lambda: network("batch"), executor="stack", **given)
        simulated(f"options/{name}/gn", images, lambda: network("group"), executor=BOTH[number % 2], **given)
    for how in BOTH:
        simulated(f"options/dropout/{how}", federation, lambda: "mlp(hidden=[32], dropout=0.2)", executor=how)
        cached = {"freeze": ["extractor"], "cache_features": True}  # which BatchNorm does not allow
        simulated(f"options/cached/gn/{how}", images, lambda: network("group"), executor=how, **cached)
        simulated(f"options/augment/{how}", augmented, lambda: network("batch"), executor=how)
        given = {"assign": [0, 1, 1, 0, 0, 1], "executor": how}
        simulated(f"options/assign/{how}", federation, lambda: [MLP, OTHER_MLP], "local", **given)
        for objective in ("binary", "multilabel", "regression"):
            fed = functools.partial(other_objective, objective)
            simulated(f"options/{objective}/{how}", fed, lambda: MLP, executor=how, lr=0.01)


@functools.cache
def other_objective(name: str) -> fh.Federation:
    """Return digits with two classes, several labels or numbers to predict."""
    x, y = load_digits(return_X_y=True)
    x, y = (x[:500] / 16).astype(np.float32), y[:500]
    made = {"binary": y % 2, "multilabel": np.stack([y % 2, y > 4, y % 3 == 0], 1).astype(np.int64)}
    target = made.get(name, y.astype(np.float32) / 9)
    return fh.Federation.from_arrays(x, target, "iid", 6, test=0.2, seed=0, objective=name)


def stage_cases() -> None:
    """Enter every stage on both executors, and again from a run folder that is loaded."""
    for how in BOTH:
        for name in sorted(fh.STAGES):
            method, stage = "fedetf" if "etf" in name else "fedavg", SHORT.get(name, name)
            simulated(f"{how}/stage/{name}", federation, lambda: MLP, method, stages=[stage], executor=how)
        for name in ("ccvr", "finetune", "ridge"):
            given = {"stages": [SHORT.get(name, name)], "executor": how}
            simulated(f"{how}/stage/{name}/bn", images, lambda: network("batch"), "fedprox", **given)
        more = "ccvr(samples=100, epochs=2, covariance=low-rank, tukey=both)"
        simulated(f"{how}/stage/ccvr/low-rank", federation, lambda: MLP, stages=[more], executor=how)
    for name in ("ccvr", "ridge", "personal_lda", "finetune"):
        case(f"load/calibrate/{name}", functools.partial(calibrated, SHORT.get(name, name)))


def calibrated(stage: str, folder: Path) -> Items:
    """Train in a run folder, load it, and run a stage on what was loaded."""
    fh.run(federation(), MLP, "fedavg", **COMMON, executor="loop", out=folder / "run")
    loaded = fh.load(folder / "run", federation=federation(), device="cpu")
    before = items(loaded, loaded.states)
    found = loaded.calibrate(stage)
    after = {"stage": digest(found.server), "weights": digest(found.weights), "stage_rows": columns([found.metrics])}
    kept = {str(k): digest(state) for k, state in sorted(stage_clients(found).items())}
    return before | after | {"stage_clients": kept}


class Killed(Exception):
    """Stands for whatever ends a process between two rounds."""


def resumed(how: str, method: str, way: str, folder: Path) -> Items:
    """Return the items of a run that was interrupted and resumed, and whether the uninterrupted one has the same."""
    given = {**COMMON, "executor": how, "persistent_optimizer": True, "stages": [SHORT["ccvr"]]}
    start = functools.partial(fh.run, federation(), MLP, method)
    whole, snapshots, out = start(**given), [], folder / "run"

    def kill(now: fh.Snapshot) -> None:
        if now.round == 2:
            raise Killed

    if way == "killed":
        with contextlib.suppress(Killed):
            start(**given, out=out, on_round=kill)
        again = start(**given, out=out, resume=True)
    elif way == "extended":
        start(**{**given, "rounds": 2}, out=out)
        again = start(**given, out=out, resume=True)
    else:
        start(**given, on_round=lambda now: snapshots.append(now) or (fh.STOP if now.round == 2 else None))
        again = start(**given, resume=snapshots[0])
    found = items(again, again.states)
    return found | {"as_uninterrupted": found == items(whole, whole.states)}


def stopped(folder: Path) -> Items:
    """Return the items of a run that its caller stopped after the second round, and of its folder when loaded."""
    stop = lambda now: fh.STOP if now.round == 2 else None  # noqa: E731
    out = folder / "run"
    result = fh.run(federation(), MLP, "scaffold", **COMMON, executor="loop", out=out, on_round=stop)
    loaded = fh.load(out, federation=federation(), device="cpu")
    return items(result, result.states) | {"loaded": items(loaded, loaded.states)}


def folder_items(out: Path) -> Items:
    """Return digests of the arrays and tensors in the files of a run folder, and of the run when loaded."""
    with np.load(out / "partition.npz", allow_pickle=False) as held:
        found = {"partition.npz": digest(dict(held))}
    found |= {path.name: digest(load_file(path)) for path in sorted(out.glob("*.safetensors"))}
    loaded = fh.load(out, device="cpu")
    return items(loaded, loaded.states) | {"files": found}


def command_line(method: str, how: str, folder: Path, *more: str) -> Items:
    """Run `fedhead run` in a process of its own; of several runs, return the items of each."""
    words = ["run", "digits", f"method={method}", "clients=6", "partition=dirichlet(0.3)", "rounds=2", "local_epochs=1"]
    words += ["model.hidden=[32]", "stages=[ccvr, ridge]", "stage.ccvr.samples=100", "client_test=0.2", *more]
    words += ["--threads", "1", "--device", "cpu", "--executor", how, "--quiet", "--out", str(folder / "run")]
    done = subprocess.run([sys.executable, "-m", "fedhead", *words], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-400:])
    several = sorted((folder / "run").glob("seed*"))
    return {path.name: folder_items(path) for path in several} if several else folder_items(folder / "run")


def flower(method: str, hidden: list[list[int]], stages: list[str], folder: Path) -> Items:
    """Run over Flower in this process; the sites' disks are what clients have kept."""
    head = fh.METHODS[method].head
    made = {f"model{i}": fh.build("mlp", (64,), 10, head, hidden=widths) for i, widths in enumerate(hidden)}
    chosen = [fh.CCVR(samples=100, epochs=2) if name == "ccvr" else fh.STAGES[name]() for name in stages]
    result, sites = over_flower(fh.METHODS[method](), made, chosen, folder)
    return items(result, sites)


def folder_cases() -> None:
    """Enter what is resumed, sent over Flower, or run by the command line."""
    for how, method in (("loop", "fedavg"), ("stack", "scaffold")):
        for way in ("killed", "extended", "snapshot"):
            case(f"resumed/{way}/{how}/{method}", functools.partial(resumed, how, method, way))
    case("resumed/stopped/loop/scaffold", stopped)
    for method in ("fedavg", "fedprox", "scaffold", "fedetf", "fedclassavg"):
        case(f"flower/{method}", functools.partial(flower, method, [[32]], []))
    case("flower/fedclassavg/mixed", functools.partial(flower, "fedclassavg", [[32], [24, 32]], []))
    for stage in ("ccvr", "finetune", "personal_lda"):
        case(f"flower/stage/{stage}", functools.partial(flower, "fedavg", [[32]], [stage]))
    for how in BOTH:
        case(f"cli/{how}/fedprox", functools.partial(command_line, "fedprox", how))


# -- recording and comparing ------------------------------------------------------------------------------------------
def measure(only: str) -> dict[str, Items]:
    """Run all cases whose names match; one that fails is stored as its error."""
    found: dict[str, Items] = {}
    for name, run in CASES.items():
        if not re.search(only, name):
            continue
        begin, said = time.perf_counter(), io.StringIO()
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  # the global generator, should anything draw from it
        torch.set_num_threads(1)
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
                found[name] = run(Path(folder))
        except Exception as error:  # the other cases are recorded all the same
            text = str(error).replace(folder, "FOLDER")
            found[name] = {"error": f"error: {type(error).__name__}: {text}"}
        shown = found[name].get("error", "")
        print(f"{time.perf_counter() - begin:6.2f} s  {name}  {shown}", file=sys.stderr, flush=True)
    return json.loads(json.dumps(found))


def environment() -> dict[str, str]:
    """Return what else digests depend on."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"python": platform.python_version(), "torch": torch.__version__, "processor": processor}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for every entry that is not the same in both, by its dotted name."""
    lines = []
    one, other = leaves(before), leaves(now)
    for name in sorted(one.keys() | other.keys()):
        texts = [json.dumps(held[name]) if name in held else "not there" for held in (one, other)]
        if texts[0] != texts[1]:
            lines.append(f"{name}: {texts[0][:200]} -> {texts[1][:200]}")
    return lines


def main() -> int:
    """Record or compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose names match")
    given = parser.parse_args()
    logging.getLogger("fedhead").setLevel(logging.ERROR)
    for enter in (method_cases, option_cases, stage_cases, folder_cases):
        enter()
    begin, now = time.perf_counter(), measure(given.only)
    failed = [name for name, held in now.items() if "error" in held]
    print(f"{len(now)} cases, {len(failed)} with an error, {time.perf_counter() - begin:.0f} s, of {fh.__file__}")
    if given.command == "record":
        given.file.write_text(json.dumps({"environment": environment(), "cases": now}, indent=1, sort_keys=True) + "\n")
        return 0
    held = json.loads(given.file.read_text())
    if held["environment"] != environment():
        print(f"recorded elsewhere: {held['environment']}, here {environment()}")
    found, differing = [], set()
    before = {name: stored for name, stored in held["cases"].items() if re.search(given.only, name)}
    for name in sorted(before.keys() | now.keys()):
        lines = differences(before.get(name, {}), now.get(name, {}))
        differing |= {name} if lines else set()
        found += [f"{name}: {line}" for line in lines]
    print("\n".join([*found, f"{len(differing)} of {len(before | now)} cases differ"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
