"""Export of trained models: ONNX, PyTorch's exported programs, and plain weights.

Each file is loaded and compared with the run's predictions before it is moved to its destination.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.api.trained import StateAfter
from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import BadInput, first_line, require
from fedhead.core.system.version import VERSION
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.missing_values import fill_inputs, unfill_inputs
from fedhead.models.split_model import SplitModel, load
from fedhead.stages.fedcof import FedCOF
from fedhead.stages.ncm import NCM
from fedhead.stages.personal_ridge import PersonalRidge
from fedhead.stages.ridge import Ridge

SUFFIXES = (".onnx", ".pt2", ".safetensors")
SAMPLES = 5  # in the check of a file
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}  # of the scores, relative to the largest; a GPU may use TF32
OPSET = 20
_LARGE = 1_500_000_000  # bytes of weights above which ONNX needs a second file


class Network(nn.Module):
    """Exported network, from inputs to scores, with optional preprocessing.

    Args:
        model: Model with trained weights.
        transform: Imputation and normalization of inputs; None: both are done before.
        names: Names of multiple inputs.
    """

    def __init__(self, model: SplitModel, transform: Callable[[Any], Any] | None, names: tuple[str, ...]):
        super().__init__()
        self.model, self.transform, self.names = model, transform, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x: Any = dict(zip(self.names, tensors, strict=True)) if self.names else tensors[0]
        if self.transform is not None:
            x = self.transform(x)
        logits: Tensor = self.model(x).logits
        return logits


def export(state: StateAfter, path: Path, client: int | None, normalize: bool, run: str = "") -> None:
    """Write a model to a file; see `fedhead.Result.export`."""
    require(path.suffix in SUFFIXES, f"{path}: a model's file ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.suffix == ".safetensors":
        require(not normalize, f"{path}: a file of weights can't hold the normalization; leave out normalize")
        weights = {name: t.detach().clone().contiguous() for name, t in state.module(client).state_dict().items()}
    else:
        network, inputs, expected = _network(state, client, normalize)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as draft:
        if path.suffix == ".safetensors":
            save_file(weights, draft)
        elif path.suffix == ".pt2":
            _save_program(network, inputs, expected, draft, path)
        else:
            metadata = _names(state.clients.federation, normalize) | _origin(state.algorithm, run)
            metadata["scores"] = _kind_of_scores(state)
            _save_onnx(network, inputs, expected, draft, path, metadata)


def _origin(algorithm: Algorithm, run: str) -> dict[str, str]:
    """Return the run, the version of fedhead, and the stage, if there is one."""
    stage = {"stage": algorithm.name} if isinstance(algorithm, Stage) else {}
    return {"fedhead": VERSION, **({"run": run} if run else {}), **stage}


def _kind_of_scores(state: StateAfter) -> str:
    """Return what the scores are: logits, scores of a stage that are no logits, or predicted numbers."""
    if state.clients.task.objective.name == "regression":
        return "numbers"
    linear = isinstance(state.algorithm, Ridge | PersonalRidge | FedCOF | NCM)
    return f"{state.algorithm.name} scores" if linear else "logits"


def _names(federation: Federation, normalize: bool) -> dict[str, str]:
    """Return the names of the classes and of a table's columns, as JSON texts."""
    names = {
        "classes": federation.class_names,
        "columns": None if federation.columns is None else federation.columns.names,
    }
    if not normalize and federation.missing:
        names["columns"] = None  # the indicators follow
    return {key: json.dumps(list(values), ensure_ascii=False) for key, values in names.items() if values is not None}


def _network(state: StateAfter, client: int | None, normalize: bool) -> tuple[Network, tuple[Tensor, ...], Tensor]:
    """Return the network, example inputs, and the run's scores for them."""
    clients = copy.copy(state.clients)
    clients.bf16 = False  # a file has the stored weights
    state = replace(state, clients=clients)
    federation = clients.federation
    model = copy.deepcopy(state.architecture(client)).cpu()
    load(model, state.weights(client).to("cpu").part("extractor", "projection", "classifier"))
    rows = unfill_inputs(_samples(federation), federation.missing)
    for name, gaps in federation.missing.items():  # the check covers a row with gaps
        (rows[name] if isinstance(rows, dict) else rows)[0, list(gaps.indicated)] = torch.nan
    stored: Any = fill_inputs(rows, federation.missing)
    expected = state.scores(stored, client).cpu()
    x: Any = rows if normalize else federation.transform(stored)
    names = tuple(x) if isinstance(x, Mapping) else ()
    tensors = tuple(x.values()) if isinstance(x, Mapping) else (x,)
    inputs = tuple(t.float() if t.is_floating_point() else t for t in tensors)

    def preprocess(x: Any) -> Any:
        filled: Any = fill_inputs(x, federation.missing)
        return federation.transform(filled)

    network = Network(model.eval(), preprocess if normalize else None, names).eval()
    with torch.no_grad():
        worst = _distance(network(*inputs), expected)
    require(
        worst <= TOLERANCE[clients.device.type],
        f"export: {state.algorithm.name} predicts by its own rule, which its weights alone do not hold "
        f"(scores differ by {worst:.1e}): use predict",
    )
    return network, inputs, expected


def _samples(federation: Any) -> Any:
    """Return a few samples of the federation, or random ones without data."""
    from fedhead.core.training.random import generator, key

    data = federation.train.x
    rows = len(federation.train.y)
    numbers = generator(key("export"))

    def some(t: Tensor) -> Tensor:
        if rows:
            return t[[i % rows for i in range(SAMPLES)]]
        shape = (SAMPLES, *t.shape[1:])
        if t.dtype in (torch.int64, torch.bool):
            return torch.ones(shape, dtype=t.dtype)  # any vocabulary has a token 1, and masks are full
        random = torch.rand(shape, generator=numbers)
        return random if t.is_floating_point() else (255 * random).to(t.dtype)

    return {name: some(t) for name, t in data.items()} if isinstance(data, Mapping) else some(data)


# -- files ------------------------------------------------------------------------------------------
def _save_program(network: Network, inputs: tuple[Tensor, ...], expected: Tensor, draft: Path, path: Path) -> None:
    with _tracing(path, "torch.export", ".safetensors"):
        program = torch.export.export(network, inputs, dynamic_shapes=_dynamic(inputs), strict=False)
        torch.export.save(program, draft)
    with _quiet():
        read: Any = torch.export.load(draft).module()
    with torch.no_grad():
        _check(path, lambda *x: read(*x), inputs, expected)


def _save_onnx(
    network: Network,
    inputs: tuple[Tensor, ...],
    expected: Tensor,
    draft: Path,
    path: Path,
    metadata: Mapping[str, str],
) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    require(not missing, f"{path}: this needs {' and '.join(missing)}: install them with pip install 'fedhead[export]'")
    weights = sum(t.nbytes for t in network.state_dict().values())
    with _tracing(path, "ONNX", ".pt2 or .safetensors"):
        program = torch.onnx.export(
            network,
            inputs,
            dynamo=True,
            verbose=False,
            input_names=list(network.names) or ["x"],
            output_names=["scores"],
            dynamic_shapes=_dynamic(inputs),
            opset_version=OPSET,
        )
        assert program is not None, "of the dynamo exporter"
        program.model.metadata_props.update(metadata)
        program.save(str(draft), external_data=weights > _LARGE)
    if importlib.util.find_spec("onnxruntime") is None:
        return
    import onnxruntime

    session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*tensors: Tensor) -> Tensor:
        given = {name: np.asarray(t.numpy()) for name, t in zip(names, tensors, strict=True)}
        return torch.from_numpy(session.run(["scores"], given)[0])

    _check(path, run, inputs, expected)


def _dynamic(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    batch = torch.export.Dim("batch")
    return {"tensors": tuple({0: batch} for _ in inputs)}


def _check(path: Path, read: Callable[..., Tensor], inputs: tuple[Tensor, ...], expected: Tensor) -> None:
    """Check that a file gives the expected scores, for a batch and for a single sample."""
    for count in (SAMPLES, 1):
        worst = _distance(read(*(t[:count] for t in inputs)), expected[:count])
        limit = TOLERANCE["cuda" if torch.cuda.is_available() else "cpu"]
        require(worst <= limit, f"{path} was not written: its scores differ from predict's by {worst:.1e}")


def _distance(scores: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest score if that is above 1."""
    finite = expected.isfinite()
    scale = max(1.0, float(expected[finite].abs().max()) if finite.any() else 1.0)
    return float((scores.float() - expected)[finite].abs().max()) / scale if finite.any() else 0.0


@contextmanager
def _tracing(path: Path, exporter: str, instead: str) -> Iterator[None]:
    """Convert an exporter's error to one with the innermost cause, without the exporter's long advice."""
    try:
        with _quiet():
            yield
    except Exception as error:  # tracing runs the user's forward, which may raise any exception
        inner: BaseException = error
        while inner.__cause__ is not None:
            inner = inner.__cause__
        why = first_line(inner)[:200]
        fix = f"write a {instead} file instead"
        raise BadInput(f"{path}: {exporter} can't express this model ({why}); {fix}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' logs and warnings; the file is checked afterwards."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
