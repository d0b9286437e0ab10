"""`fedhead.extract_features`: a federation of features, computed once by a frozen model."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from os import PathLike
from pathlib import Path

from fedhead.core.system.errors import forward_errors
from fedhead.data.federation.federation import Federation, Samples
from fedhead.engine.clients.features import FeatureExtractor, of_features
from fedhead.executors import select
from fedhead.models.precision import set_precision, warn_if_emulated
from fedhead.models.registry import ModelLike, build
from fedhead.models.split_model import SplitModel
from fedhead.runs.progress import counter


def extract_features(
    federation: Federation,
    model: SplitModel | ModelLike,
    *,
    device: str = "auto",
    precision: str = "fp32",
    cache: str | PathLike[str] | None = None,
    progress: bool = False,
) -> Federation:
    """Compute the features of all samples and return a federation of features with the same clients.

    Train or compute a head on it: `fedhead.run(features, "mlp(hidden=[])", …)`.

    Args:
        federation: Data of the clients.
        model: Model, or its name, such as `"efficientnet_lite0"`; used in evaluation mode, without augmentation.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        precision: `"fp32"`, `"tf32"` or `"bf16"`; features are float32.
        cache: Folder of cached features, by model, transform, samples and precision; None: no cache.
        progress: Show a progress bar.

    Returns:
        The federation of features, [N, d].

    Raises:
        BadInput: If the samples are no valid inputs of the model.

    >>> federation = Federation.load("digits", "iid", clients=3)
    >>> extract_features(federation, "mlp(hidden=[16])").input_shape
    (16,)
    """
    if not isinstance(model, SplitModel):
        model = build(model, federation.input_shape, federation.outputs)
    where = select.device(device)
    folder = None if cache is None else Path(os.fspath(cache))
    bf16 = set_precision(precision, where)
    if bf16:
        warn_if_emulated(where)
    extract = FeatureExtractor(copy.deepcopy(model).to(where), federation.transform, bf16, folder, projected=True)
    parts = [part for part in (federation.train, federation.test, federation.public) if part is not None]
    size, problem = sum(len(part.y) for part in parts), f"the model can't take inputs of shape {federation.input_shape}"
    with forward_errors(problem), counter(size, "features", not progress) as advance:
        features = of_features(federation, extract, advance)

    def on_cpu(part: Samples | None) -> Samples | None:
        return None if part is None else Samples(part.x.cpu(), part.y)  # type: ignore[union-attr]  # one tensor

    return replace(features, train=on_cpu(features.train), test=on_cpu(features.test), public=on_cpu(features.public))  # type: ignore[arg-type]  # training data is never None
