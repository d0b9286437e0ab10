"""Attention for Hugging Face models that runs on every executor.

The library's attention draws dropout inside a fused kernel and skips masks depending on their values. Neither works
under `vmap` over clients. This module registers another implementation through the library's interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.system.log import logger

NAME = "fedhead"  # name of the implementation in transformers


def use_plain_attention(model: nn.Module) -> None:
    """Switch a Hugging Face model to `plain_attention`, in place; other models are unchanged."""
    if getattr(getattr(model, "config", None), "_attn_implementation", None) is None:
        return
    transformers: Any = import_module("transformers")  # installed, since the model comes from it
    transformers.AttentionInterface.register(NAME, plain_attention)
    transformers.AttentionMaskInterface.register(NAME, plain_mask)
    try:
        model.set_attn_implementation(NAME)  # type: ignore[operator]  # a method of Hugging Face's models
    except (ValueError, ImportError) as error:
        logger.info("%s keeps its own attention (%s)", type(model).__name__, error)


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(QKᵀ·scaling + mask)·V (Vaswani et al., 2017, Eq. 1) with dropout by key.

    Args:
        module: The layer.
        query: Queries, [B, heads, T, d].
        key: Keys, [B, heads or a divisor of it, S, d].
        value: Values, shaped like `key`.
        attention_mask: Mask added to the products: 0 for positions to attend to.
        scaling: Scale of the products; 1/√d by default.
        dropout: Share of the attention weights that are zeroed in training.
        **others: Ignored arguments of other implementations.

    Returns:
        The output, [B, T, heads, d], and the weights.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    products = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        products = products + attention_mask[:, :, :, : key.shape[-2]]
    weights = F.dropout(products.softmax(-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def plain_mask(*args: Any, **kwargs: Any) -> Any:
    """Return the mask of plain attention, never skipped, since that would depend on its values."""
    masks: Any = import_module("transformers.masking_utils")
    return masks.eager_mask(*args, **{**kwargs, "allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})
