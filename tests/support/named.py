"""A small federation whose samples are an image, a row of numbers, tokens and a mask, and a model that takes them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedhead as fh

CLIENTS = 4


class SeveralInputs(nn.Module):
    """Reads every input, so that none of them can be lost or mixed up without a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.embedding = nn.Embedding(20, 4)
        self.body = nn.Linear(4 + 4 + 3, 16)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(16, 3)

    def forward(self, image: Tensor, row: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)
        there = mask.unsqueeze(-1).to(row.dtype)
        words = (self.embedding(ids) * there).sum(1) / there.sum(1).clamp_min(1)
        h = torch.cat([self.convolution(image).mean((2, 3)), words, row], 1)
        return self.fc(self.dropout(torch.tanh(self.body(h))))


def arrays(n: int = 90) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    mask = np.arange(5) < rng.integers(1, 6, n)[:, None]
    x = {
        "image": rng.integers(0, 256, (n, 8, 8)).astype(np.uint8),
        "row": rng.normal(size=(n, 3)),
        "ids": rng.integers(0, 20, (n, 5)) * mask,
        "mask": mask,
    }
    return x, (x["row"][:, 0] > 0) * 1 + (x["ids"][:, 0] > 10) * 1


def named_federation(**settings: object) -> fh.Federation:
    x, y = arrays()
    given = {"partition": "dirichlet(0.5)", "clients": CLIENTS, "test": 0.2, "client_test": 0.2, "augment": "flip"}
    return fh.Federation.from_arrays(x, y, layout={"ids": "tokens"}, **{**given, **settings})


def named_model() -> fh.SplitModel:
    torch.manual_seed(0)
    return fh.split(SeveralInputs())
