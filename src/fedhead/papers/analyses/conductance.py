"""Layer conductance: importance of features for a client's classifier (FedClassAvg, Fig. 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput, require
from fedhead.models.split_model import SplitModel


class Logits(nn.Module):
    """A model that returns only its logits, as attribution methods expect."""

    def __init__(self, model: SplitModel):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        return cast(Tensor, self.model(x).logits)


def conductance(model: SplitModel, x: Tensor, y: Tensor, steps: int = 50) -> Tensor:
    """Compute the conductance (Dhamdhere et al., 2019) of each classifier input.

    For each feature, the gradients of the logit that pass through it are summed along the path from a blank input
    to x. The conductances of all features add up to the change of the logit along this path.

    Args:
        model: The model.
        x: Inputs, [B, ...].
        y: Classes whose logits are explained, [B].
        steps: Steps along the path.

    Returns:
        Conductances, [B, d].

    Raises:
        BadInput: If captum is not installed.
    """
    try:
        from captum.attr import LayerConductance
    except ImportError as error:
        raise BadInput("conductance needs captum: install it with pip install 'fedhead[analysis]'") from error
    logits = Logits(model.eval())
    layer = LayerConductance(logits, logits.model.classifier)
    attributions = layer.attribute(x, target=y, n_steps=steps, attribute_to_layer_input=True)
    return cast(Tensor, attributions[0] if isinstance(attributions, tuple) else attributions).detach()


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each feature along the last axis, 0 for the smallest; ties keep their order."""
    return values.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)


def similarity(by_client: Mapping[int, Tensor]) -> float:
    """Return the mean rank correlation (Spearman) over all pairs of clients."""
    rows = torch.stack([ranks(v).double() for v in by_client.values()])
    require(len(rows) >= 2, f"conductance compares clients: only {len(rows)} classifies the image correctly")
    rows = rows - rows.mean(dim=1, keepdim=True)
    unit = rows / rows.norm(dim=1, keepdim=True)
    pairs = (unit @ unit.T).triu(diagonal=1)
    return float(pairs.sum()) / (len(rows) * (len(rows) - 1) / 2)
