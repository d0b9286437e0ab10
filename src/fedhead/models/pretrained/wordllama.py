"""WordLlama's token embeddings as features of texts: the mean over a text's tokens.

The table (32,000 tokens of 256 numbers, 16 MB) comes with the PyPI package wordllama (MIT). Its loader accesses the
network, so the file is read from the package's folder.
"""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.packages import package_folder
from fedhead.models.registry import FeatureExtractor, Preprocessing, Shape, register

_FILE = ("weights", "l2_supercat_256.safetensors")
TOKENS, WIDTH = 32_000, 256


class MeanEmbedding(nn.Module):
    """Mean of the embeddings of a text's tokens; token numbers from `TOKENS` on are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(TOKENS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, T] to features [B, 256]."""
        present = x < TOKENS
        vectors = self.weight[x.clamp(max=TOKENS - 1)] * present.unsqueeze(-1).to(self.weight.dtype)
        return vectors.sum(-2) / present.sum(-1, keepdim=True).clamp_min(1).to(self.weight.dtype)


@register(
    "wordllama",
    "mean of WordLlama's token embeddings of texts (pip install 'fedhead[text]'), 256-d; encode=wordllama",
    Preprocessing(encode="wordllama"),
)
def wordllama(shape: Shape, pretrained: bool = True) -> FeatureExtractor:
    """Build the mean of token embeddings, for texts encoded with `encode: wordllama`."""
    given = tuple(shape)
    require(len(given) == 1, f"model 'wordllama' takes tokens, not inputs of shape {given}: set encode=wordllama(128)")
    net = MeanEmbedding()
    if pretrained:
        path = package_folder("wordllama", "text").joinpath(*_FILE)
        require(path.is_file(), f"{path} is not there: install the package wordllama 0.4 again")
        tensors = load_file(path)
        table = tensors.get("embedding.weight")
        if table is None or table.shape != net.weight.shape:
            raise BadInput(f"{path} holds another table of embeddings: install the package wordllama 0.4")
        with torch.no_grad():
            net.weight.copy_(table)
    return FeatureExtractor(net, WIDTH)
