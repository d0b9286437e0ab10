"""Extractors from the library timm: `timm:NAME`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from fedhead.core.system.errors import BadInput, first_line
from fedhead.models.pretrained.pretrained import fix_batch_norm, import_library
from fedhead.models.registry import FeatureExtractor, Preprocessing, Shape, image


def timm_model(name: str) -> Callable[..., FeatureExtractor]:
    """Return a builder of a timm model without its classifier.

    Args:
        name: Name in timm, such as `resnet18.a1_in1k`.

    Raises:
        BadInput: If timm can't be imported, or does not know the model.
    """
    timm = import_library("timm", f"timm:{name}", "timm")
    plain = name.partition(".")[0]
    if not timm.is_model(plain):
        near = difflib.get_close_matches(plain, timm.list_models(), n=1, cutoff=0.5)
        hint = f"did you mean timm:{near[0]}?" if near else "timm.list_models() lists them"
        raise BadInput(f"model timm:{name}: timm has no such model; {hint}")

    config: Any = timm.get_pretrained_cfg(name)

    def build(shape: Shape, pretrained: bool = True) -> FeatureExtractor:
        """Build a timm model; BatchNorm keeps the pretrained statistics."""
        channels, height, width = image(f"timm:{name}", shape, least=8)
        if config is not None and config.fixed_input_size and (height, width) != tuple(config.input_size[1:]):
            side = config.input_size[-1]
            raise BadInput(f"model timm:{name} takes images of {side}x{side}, not {height}x{width}: set resize={side}")
        try:
            net = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            fix = "; without pretrained weights: model.pretrained=false" if pretrained else ""
            raise BadInput(f"model timm:{name} can't be made ({first_line(error)}){fix}") from error
        return FeatureExtractor(fix_batch_norm(net), int(net.num_features))

    if config is not None:
        vars(build)["preprocessing"] = Preprocessing(int(config.input_size[-1]), tuple(config.mean), tuple(config.std))
    build.__module__ = __name__
    return build
