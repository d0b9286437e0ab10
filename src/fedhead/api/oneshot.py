"""`fedhead.oneshot`: heads in closed form on features of a pretrained model, from one message per client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedhead.api.features import extract_features
from fedhead.api.oneshot_result import COLUMNS, OneShot
from fedhead.api.result import Result
from fedhead.api.run import run
from fedhead.core.system.errors import BadInput, unknown
from fedhead.core.system.log import warn_once
from fedhead.data.federation import preprocessing
from fedhead.data.federation.federation import Federation
from fedhead.data.federation.leave_out import fitted_anew
from fedhead.data.sources.datasets import is_path
from fedhead.data.transforms.augment import NORMALIZATIONS, Transform
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.executors import select
from fedhead.models.registry import MODELS, Preprocessing
from fedhead.stages import STAGES
from fedhead.stages.ccvr import CCVR
from fedhead.stages.closed_form import ClosedFormHead

HEADS = ("ncm", "ridge", "lda", "qda", "fedcof")
HEAD_ALONE = "mlp(hidden=[])"  # a linear layer on the features
TEST_SHARE = 0.2  # share of each client's samples that is held out where there is no test set
QUICK_SIDE = 64  # pixels of images up to which features take little time on a CPU
LARGEST = 4e9  # bytes of all clients' messages together, beyond which a head is computed only where it is named


def oneshot(
    data: Federation | str | PathLike[str],
    backbone: str = "efficientnet_lite0",
    heads: str | Sequence[str] = "all",
    *,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    resize: int | None = None,
    normalize: str | None = None,
    missing: Literal["refuse", "mean"] = "refuse",
    rounds: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    data_dir: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
    progress: bool = False,
) -> OneShot:
    """Compute heads on features of a pretrained model from one message per client, and compare them.

    Args:
        data: A federation, the name of a data set, an .npz file, or a folder of images. Where there is no test set, a
            fifth of each client's samples is held out.
        backbone: Name of the model that computes the features, such as `"efficientnet_lite0"` or `"wordllama"`.
        heads: `"all"`, or names of stages in closed form: ncm, ridge, lda, qda, fedcof.
        partition: How a data set is distributed over clients; by default as `Federation.load` does.
        clients: Number of clients.
        seed: Seed of the partition and of test sets.
        resize: Height and width of images; by default those of the model's pretraining.
        normalize: Normalization by name, or `"standard"`: by the mean and deviation of each feature over all clients'
            training samples; by default that of the model's pretraining.
        missing: What to do about NaN in tables: refuse it, or `"mean"`: fill in the feature's mean over all clients'
            training samples, with an indicator column.
        rounds: With FedAvg on the same features over so many rounds, and CCVR after them, for comparison; 0: without.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        precision: What features are computed in: `"fp32"`, `"tf32"` or `"bf16"`.
        data_dir: Folder of the data sets.
        cache: Folder where features are kept for the next time; None: they are not.
        progress: Show a progress bar.

    Returns:
        The heads and their numbers.

    Raises:
        BadInput: If a name is unknown, or the model can't take the data.

    >>> found = oneshot("digits", "mlp(hidden=[32])", ["ncm", "ridge"], partition="dirichlet(0.1)", clients=4)
    >>> [row["head"] for row in found.rows]
    ['ncm', 'ridge']
    """
    names = _heads(heads)
    entry = MODELS.resolve_call(backbone)[1]
    wanted = entry.preprocessing or Preprocessing()
    federation = _federation(data, partition, clients, seed, data_dir, missing, wanted)
    federation = _prepared(federation, wanted, resize, normalize, seed)
    _warn_of_cpu(federation.transform, device)
    begin = time.perf_counter()
    held = extract_features(federation, backbone, device=device, precision=precision, cache=cache, progress=progress)
    seconds = time.perf_counter() - begin
    rows, result = _closed_form(held, names, heads == "all", device)
    if rounds:
        rows += _fedavg(held, rounds, seed, device)
    title = f"{federation.title}, {len(federation)} clients ({federation.partition}), {backbone}"
    return OneShot([{name: row.get(name) for name in COLUMNS} for row in rows], held, seconds, result, title)


def _heads(asked: str | Sequence[str]) -> list[str]:
    names = list(HEADS) if asked == "all" else [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if name not in STAGES or not issubclass(STAGES[name], ClosedFormHead):
            raise unknown("head in closed form", name, HEADS)
    if len(set(names)) < len(names):
        raise BadInput(f"heads: {max(names, key=names.count)} is given twice; name each once")
    if not names:
        raise BadInput("heads is an empty list: give at least one, or all")
    return names


def _federation(
    data: Federation | str | PathLike[str],
    partition: str | None,
    clients: int | None,
    seed: int,
    data_dir: str | PathLike[str] | None,
    missing: str,
    wanted: Preprocessing,
) -> Federation:
    if isinstance(data, Federation):
        if partition is not None or clients is not None:
            raise BadInput("partition and clients would have no effect: the federation has its clients")
        if missing != "refuse":
            raise BadInput("missing would have no effect: the federation was made without missing values")
        return data
    if not isinstance(data, str | PathLike):
        raise BadInput(f"data is {type(data).__name__}: give a federation, a data set's name, or a path")
    more: dict[str, Any] = {}
    if wanted.encode is not None and is_path(data) and Path(data).is_file():
        more["encode"] = wanted.encode
    if missing == "refuse":
        return Federation.load(data, partition, clients, seed, data_dir, **more)
    federation = Federation.load(data, partition, clients, seed, data_dir, missing=missing, **more)
    if federation.test is not None:
        return federation
    return fitted_anew(federation, federation.hold_out(TEST_SHARE, seed))  # no test sample counts in the means


def _prepared(
    federation: Federation, wanted: Preprocessing, resize: int | None, normalize: str | None, seed: int
) -> Federation:
    """Return the federation with the inputs that the model wants, and with test sets."""
    transform = federation.transform
    if federation.has_classes is False or federation.objective != "multiclass":
        raise BadInput(f"heads in closed form are for classes, the data's objective is {federation.objective}")
    if isinstance(transform, Transform):
        side = resize if resize is not None else wanted.resize
        mean, std = wanted.mean, wanted.std
        if normalize not in (None, "standard"):
            if normalize not in NORMALIZATIONS:
                raise unknown("normalization", normalize, [*NORMALIZATIONS, "standard"])
            mean, std = NORMALIZATIONS[normalize]
        if resize is None and wanted.resize is not None and len(federation.input_shape) != 3:
            raise BadInput(
                f"this backbone takes images, the samples have shape {federation.input_shape}: use --backbone "
                "'mlp(hidden=[512])' --normalize standard for tables, --backbone wordllama for texts"
            )
        channels = federation.train.x.shape[1] if not isinstance(federation.train.x, dict) else 0
        if len(mean) > 1 and channels == 1:  # a gray image that the model repeats over its channels
            mean, std = (float(np.mean(mean)),), (float(np.mean(std)),)
        made = transform.replace("none", resize=side)
        transform = replace(made, mean=mean, std=std) if mean else made
    elif resize is not None or normalize is not None:
        raise BadInput("resize and normalize are for images, the samples have several inputs")
    federation = replace(federation, transform=transform)
    if federation.test is None:
        federation = federation.hold_out(TEST_SHARE, seed)
    if normalize == "standard":
        federation = preprocessing.standardize(federation)
    return federation if federation.client_test is not None else federation.with_client_test("matched", seed)


def _warn_of_cpu(transform: AnyTransform, device: str) -> None:
    """Say that large images take long without a GPU."""
    side = transform.resize if isinstance(transform, Transform) else None
    if side is not None and side > QUICK_SIDE and select.device(device).type == "cpu":
        warn_once(f"features of {side}x{side} images take long on a CPU: --resize {QUICK_SIDE} is faster")


def _closed_form(
    held: Federation, names: Sequence[str], skip: bool, device: str
) -> tuple[list[dict[str, Any]], Result | None]:
    """Return one row per head; with `skip`, a head that can't be computed is one with a note."""
    absent: Any = "refuse" if held.counts().sum(0).all() else "never"
    everything = [np.sort(np.concatenate(held.rows))]
    pooled = replace(held, rows=everything, client_test=None, client_names=None)
    rows: list[dict[str, Any]] = []
    kept: Result | None = None
    for name in names:
        kind: Any = STAGES[name]
        made = kind(absent=absent)
        if skip and made.kind == "full" and (size := _full_bytes(held) * len(held)) > LARGEST:
            rows.append({"head": name, "note": f"left out: messages of {size / 1e9:.0f} GB"})
            continue
        try:
            result = run(held, HEAD_ALONE, rounds=0, stages=[made], metrics=["f1", "worst_client"], device=device)
        except BadInput as error:
            if not skip:
                raise
            rows.append({"head": name, "note": str(error)})
            continue
        stage = result.stages[name]
        found = stage.metrics.get("metrics") or {}
        bound = None
        if name != "fedcof":  # which needs the spread of several clients' means
            bound = run(pooled, HEAD_ALONE, rounds=0, stages=[made], device=device).stages[name].accuracy
        sent = stage.metrics["bytes_up"] / sum(size > 0 for size in held.sizes)
        rows.append(
            {
                "head": name,
                "accuracy": stage.accuracy,
                "pooled": bound,
                "f1": found.get("f1"),
                "worst_client": _worst(found),
                "bytes_per_client": sent,
                "seconds": stage.metrics["seconds"],
            }
        )
        kept = result
    return rows, kept


def _worst(metrics: Mapping[str, float | None]) -> float | None:
    """Return the lowest accuracy of a client in per cent."""
    worst = metrics.get("worst_client")
    return None if worst is None else 100 * worst


def _full_bytes(held: Federation) -> int:
    """Return the bytes of a client's full statistics."""
    d = held.input_shape[0]
    return int(8 * held.classes * (1 + d + d * (d + 1) // 2))


def _fedavg(held: Federation, rounds: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Return what FedAvg, and CCVR after it, reach on the same features."""
    full = _full_bytes(held) * len(held) <= LARGEST
    ccvr = CCVR(covariance="full" if full else "diagonal")
    result = run(
        held,
        HEAD_ALONE,
        rounds=rounds,
        lr=0.1,
        stages=[ccvr],
        metrics=["f1", "worst_client"],
        evaluate_every=rounds,
        seed=seed,
        device=device,
    )
    over = f"fedavg, {rounds} round{'s' * (rounds > 1)}"
    there, stage = sum(size > 0 for size in held.sizes), result.stages["ccvr"]
    sent = sum(row["bytes_up"] for row in result.rows) / there
    seconds = sum(row["seconds"] for row in result.rows)
    more = stage.metrics.get("metrics") or {}
    return [
        {
            "head": over,
            "accuracy": result.accuracy,
            "f1": result.metrics.get("f1"),
            "worst_client": _worst(result.metrics),
            "bytes_per_client": sent,
            "seconds": seconds,
        },
        {
            "head": f"{over}, ccvr",
            "accuracy": stage.accuracy,
            "f1": more.get("f1"),
            "worst_client": _worst(more),
            "bytes_per_client": sent + stage.metrics["bytes_up"] / there,
            "seconds": seconds + stage.metrics["seconds"],
        },
    ]
