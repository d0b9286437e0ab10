"""`fedhead.oneshot`: closed-form heads on features of a pretrained model, from one message per client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedhead.algorithm.upload import Upload
from fedhead.api.features import extract_features
from fedhead.api.result import Result
from fedhead.api.run import run
from fedhead.core.system.errors import BadInput, require, unknown
from fedhead.core.system.log import warn_once
from fedhead.data.federation import preprocessing
from fedhead.data.federation.federation import Federation
from fedhead.data.federation.preprocessing import refit
from fedhead.data.sources.datasets import is_path
from fedhead.data.transforms.augment import Transform
from fedhead.executors import select
from fedhead.models.registry import MODELS, Preprocessing
from fedhead.privacy.base import Protection
from fedhead.privacy.guarantee import Guarantee
from fedhead.report.table import Cell, Table, number
from fedhead.stages import STAGES
from fedhead.stages.ccvr import CCVR
from fedhead.stages.closed_form import ClosedFormHead

HEADS = ("ncm", "ridge", "lda", "qda", "fedcof")
HEAD_ALONE = "mlp(hidden=[])"  # a linear layer on the features
METRICS = ("f1", "worst_client")
TEST_SHARE = 0.2  # share of each client's samples held out if there is no test set
QUICK_SIDE = 64  # image size up to which features are fast on a CPU
LARGEST = 4e9  # total bytes of messages above which `heads="all"` skips a head


@dataclass(frozen=True, repr=False)
class OneShot:
    """Comparison of heads on the same features: accuracies and costs.

    Attributes:
        rows: Rows, one per head: `accuracy` in per cent, `pooled` (accuracy of the same head on centralized
            features, without noise), macro-averaged `f1`, `worst_client` (the lowest accuracy of a client, in per
            cent), `bytes_per_client` sent, `seconds`, and `privacy` (the guarantee of `privacy=`, or None); `note` is
            the reason of missing values.
        features: Federation of features.
        feature_seconds: Time to compute the features.
        result: Run without rounds that computed the last head, for `result.module(stage="ridge")`.
        title: Title of the comparison.
    """

    rows: list[dict[str, Any]]
    features: Federation
    feature_seconds: float
    result: Result | None
    title: str

    def __repr__(self) -> str:
        """Return the table as Markdown."""
        return self.table().markdown()

    @property
    def guarantees(self) -> list[Guarantee]:
        """Differential privacy of each head by itself; empty without protection."""
        return [Guarantee(**row["privacy"]) for row in self.rows if row["privacy"]]

    def table(self) -> Table:
        """Return the rows as a table."""
        formats = {"accuracy": ".2f", "pooled": ".2f", "f1": ".4f", "worst_client": ".2f"}
        body: list[list[Cell | str]] = []
        for row in self.rows:
            cells = [number(row[name], digits) for name, digits in formats.items()]
            sent = row["bytes_per_client"]
            seconds = Cell(row["note"]) if row["note"] else number(row["seconds"], ".2f")
            body.append([row["head"], *cells, number(None if sent is None else sent / 1e3, ",.1f"), seconds])
        pooled = "pooled, no noise %" if self.guarantees else "pooled %"
        head = ["head", "accuracy %", pooled, "macro-F1", "worst client %", "kB per client", "seconds"]
        return Table(self.title, head, body)

    def plot(self, path: str | PathLike[str]) -> None:
        """Plot the accuracy against the bytes sent per client.

        Args:
            path: Output file, .png, .svg or .pdf.
        """
        from fedhead.report.figures import plots

        rows = [row for row in self.rows if row["accuracy"] is not None]
        points = [(row["head"], row["bytes_per_client"], row["accuracy"]) for row in rows]
        plots.save(plots.accuracy_by_bytes(points), Path(path))


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
    privacy: Sequence[Protection | type[Protection] | str] = (),
    uploads: Sequence[Upload | type[Upload] | str] = (),
    device: str = "auto",
    precision: str = "fp32",
    data_dir: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
    progress: bool = False,
) -> OneShot:
    """Compute and compare heads on features of a pretrained model, from one message per client.

    Args:
        data: Federation, name of a data set, .npz file, or folder of images. Without a test set, a fifth of each
            client's samples is held out.
        backbone: Name of the model that computes the features, such as `"efficientnet_lite0"` or `"wordllama"`.
        heads: `"all"`, or names of closed-form stages: ncm, ridge, lda, qda, fedcof.
        partition: Partition of the data set; None: the default of `Federation.load`.
        clients: Number of clients.
        seed: Seed of the partition and of the clients' test sets.
        resize: Height and width of images; None: those of the model's pretraining.
        normalize: Name of a normalization, or `"standard"` (mean and deviation of each feature over all clients'
            training samples); None: that of the model's pretraining.
        missing: Handling of NaN in tables: `"refuse"`, or `"mean"` (fill in the feature's mean over all clients'
            training samples, and add an indicator column).
        rounds: Rounds of FedAvg with CCVR on the same features, for comparison; 0: none.
        privacy: Differential privacy of each head, such as `dp(epsilon=1)`; the accuracy on pooled data has none. Each
            head spends the whole budget: publish one.
        uploads: Uploads of each head, such as `secure_sum`: with it clients share the noise of `privacy`.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        precision: Precision of the features: `"fp32"`, `"tf32"` or `"bf16"`.
        data_dir: Folder of the data sets.
        cache: Folder of cached features; None: no cache.
        progress: Show a progress bar.

    Returns:
        The heads and their numbers.

    Raises:
        BadInput: If a name is unknown, or the data is no valid input of the model.

    >>> found = oneshot("digits", "mlp(hidden=[32])", ["ncm", "ridge"], partition="dirichlet(0.1)", clients=4)
    >>> [row["head"] for row in found.rows]
    ['ncm', 'ridge']
    """
    names = _heads(heads)
    require(not (rounds and (privacy or uploads)), "rounds: FedAvg is compared without protection: leave rounds out")
    wanted = MODELS.resolve_call(backbone)[1].preprocessing or Preprocessing()
    federation = _federation(data, partition, clients, seed, data_dir, missing, wanted)
    federation = _prepared(federation, wanted, resize, normalize, seed)
    side = federation.transform.resize if isinstance(federation.transform, Transform) else None
    if side is not None and side > QUICK_SIDE and select.device(device).type == "cpu":
        warn_once(f"features of {side}x{side} images take long on a CPU: --resize {QUICK_SIDE} is faster")
    begin = time.perf_counter()
    features = extract_features(
        federation, backbone, device=device, precision=precision, cache=cache, progress=progress
    )
    feature_seconds = time.perf_counter() - begin
    protections = {"privacy": privacy, "uploads": uploads}
    rows, result = _closed_form(features, names, heads == "all", device, protections)
    if rounds:
        rows += _fedavg(features, rounds, seed, device)
    title = f"{federation.title}, {len(federation)} clients ({federation.partition}), {backbone}"
    return OneShot(rows, features, feature_seconds, result, title)


def _heads(heads: str | Sequence[str]) -> list[str]:
    names = list(HEADS) if heads == "all" else [heads] if isinstance(heads, str) else list(heads)
    for name in names:
        if name not in STAGES or not issubclass(STAGES[name], ClosedFormHead):
            raise unknown("head in closed form", name, HEADS)
    if not names or len(set(names)) < len(names):
        problem = f"{max(names, key=names.count)} is given twice; name each once" if names else "name at least one"
        raise BadInput(f"heads: {problem}, or all")
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
        given = {"partition": partition is not None, "clients": clients is not None, "missing": missing != "refuse"}
        if unused := [name for name, there in given.items() if there]:
            raise BadInput(f"{unused[0]} would have no effect: the federation has its clients and their samples")
        return data
    kind = type(data).__name__
    require(isinstance(data, str | PathLike), f"data is {kind}: give a federation, a data set's name, or a path")
    options: dict[str, Any] = {} if missing == "refuse" else {"missing": missing}
    if wanted.encode is not None and is_path(data) and Path(data).is_file():
        options["encode"] = wanted.encode
    federation = Federation.load(data, partition, clients, seed, data_dir, **options)
    if missing == "refuse" or federation.test is not None:
        return federation
    return refit(federation.hold_out(TEST_SHARE))  # recompute the means without test samples


def _prepared(
    federation: Federation, wanted: Preprocessing, resize: int | None, normalize: str | None, seed: int
) -> Federation:
    """Return the federation with the inputs of the model's pretraining, and with test sets."""
    require(
        federation.has_classes is not False and federation.objective == "multiclass",
        f"heads in closed form are for classes, the data's objective is {federation.objective}",
    )
    if resize is None and wanted.resize is not None and len(federation.input_shape) != 3:
        raise BadInput(
            f"this backbone takes images, the samples have shape {federation.input_shape}: use --backbone "
            "'mlp(hidden=[512])' --normalize standard for tables, --backbone wordllama for texts"
        )
    if federation.test is None:
        federation = federation.hold_out(TEST_SHARE)
    federation = preprocessing.prepare(federation, "refuse", "none", normalize, resize or wanted.resize)
    if normalize is None and wanted.mean and isinstance(federation.transform, Transform):
        mean, std = wanted.mean, wanted.std
        if federation.input_shape[0] == 1:  # the model repeats a gray image over its channels
            mean, std = (float(np.mean(mean)),), (float(np.mean(std)),)
        federation = replace(federation, transform=replace(federation.transform, mean=mean, std=std))
    return federation if federation.client_test is not None else federation.with_client_test("matched", seed)


def _closed_form(
    features: Federation,
    names: Sequence[str],
    skip: bool,
    device: str,
    protections: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], Result | None]:
    """Return one row per head; with `skip`, a failing head has a note instead of values."""
    absent = "refuse" if features.counts().sum(0).all() else "never"
    pooled = replace(features, indices=[np.sort(np.concatenate(features.indices))], client_test=None, client_names=None)
    rows: list[dict[str, Any]] = []
    last: Result | None = None
    for name in names:
        kind: Any = STAGES[name]
        stage = kind(absent=absent)
        size = _full_bytes(features) * len(features)
        if skip and stage.kind == "full" and size > LARGEST:
            rows.append(_left_out(name, f"left out: messages of {size / 1e9:.0f} GB"))
            continue
        try:
            last = run(features, HEAD_ALONE, rounds=0, stages=[stage], metrics=METRICS, device=device, **protections)
        except BadInput as error:
            if not skip:
                raise
            rows.append(_left_out(name, str(error)))
            continue
        bound = None
        if name != "fedcof":  # fedcof needs the means of several clients
            bound = run(pooled, HEAD_ALONE, rounds=0, stages=[stage], device=device).stages[name].accuracy
        rows.append(_row(name, features, last, name, bound))
    return rows, last


def _fedavg(features: Federation, rounds: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Return the rows of FedAvg and of CCVR after it on the same features."""
    stage = CCVR(covariance="full" if _full_bytes(features) * len(features) <= LARGEST else "diagonal")
    settings: dict[str, Any] = {"rounds": rounds, "lr": 0.1, "evaluate_every": rounds, "seed": seed, "device": device}
    result = run(features, HEAD_ALONE, stages=[stage], metrics=METRICS, **settings)
    name = f"fedavg, {rounds} round{'s' * (rounds > 1)}"
    return [_row(name, features, result), _row(f"{name}, ccvr", features, result, "ccvr")]


def _row(
    head: str, features: Federation, result: Result, stage: str | None = None, pooled: float | None = None
) -> dict[str, Any]:
    """Return the row of a run or of a stage, with the cumulative cost of all rounds."""
    after = None if stage is None else result.stages[stage]
    metrics = result.metrics if after is None else after.metrics.get("metrics") or {}
    costs = result.rows if after is None else [*result.rows, after.metrics]
    worst = metrics.get("worst_client")
    return {
        "head": head,
        "accuracy": result.accuracy if after is None else after.accuracy,
        "pooled": pooled,
        "f1": metrics.get("f1"),
        "worst_client": None if worst is None else 100 * worst,
        "bytes_per_client": sum(row["bytes_up"] for row in costs) / sum(size > 0 for size in features.sizes),
        "seconds": sum(row["seconds"] for row in costs),
        "privacy": None if after is None else after.metrics.get("privacy"),
        "note": None,
    }


def _left_out(head: str, note: str) -> dict[str, Any]:
    names = ("accuracy", "pooled", "f1", "worst_client", "bytes_per_client", "seconds", "privacy")
    return {"head": head, **dict.fromkeys(names), "note": note}


def _full_bytes(features: Federation) -> int:
    """Return the bytes of a client's full statistics."""
    d = features.input_shape[0]
    return int(8 * features.classes * (1 + d + d * (d + 1) // 2))
