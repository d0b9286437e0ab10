"""Linear CKA: similarity of the features of different clients' models, layer by layer.

CKA(X, Y) = ‖YᵀX‖²_F / (‖XᵀX‖_F · ‖YᵀY‖_F) for features X [n, p] and Y [n, q] of the same samples with centered columns
(Kornblith et al., 2019). CCVR's appendix prints the denominator squared, which does not give 1 for identical models.
The products are summed over chunks of samples, so memory depends on the layers' widths, not on the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.core.tree.tree import Weights
from fedhead.models.layers import activations
from fedhead.models.split_model import SplitModel

BUDGET = 1_500_000_000  # memory in bytes for the sums of all layers; wide layers use `Kernels` instead


class Grams:
    """Running sums for the pairwise CKA of one layer of several models.

    >>> x, sums = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), Grams(2)
    >>> sums.add([x, -3 * x])
    >>> round(float(sums.cka()[0, 1]), 6)
    1.0
    """

    def __init__(self, models: int):
        self.models, self.samples = models, 0
        self._total: list[Tensor] = []
        self._cross: dict[tuple[int, int], Tensor] = {}

    def add(self, parts: Sequence[Tensor]) -> None:
        """Add a chunk of samples: the layer's output of each model, [chunk, …]."""
        flat = [part.reshape(len(part), -1).double() for part in parts]
        if not self._total:
            self._total = [torch.zeros_like(x[0]) for x in flat]
            self._cross = {(i, j): flat[i].new_zeros(flat[i].shape[1], flat[j].shape[1]) for i, j in self._pairs()}
        self.samples += len(flat[0])
        for total, x in zip(self._total, flat, strict=True):
            total.add_(x.sum(0))
        for (i, j), cross in self._cross.items():
            cross.addmm_(flat[i].T, flat[j])

    def cka(self) -> Tensor:
        """Return the CKA of every pair of models, [K, K]."""
        out = torch.ones(self.models, self.models, dtype=torch.float64)
        square = {
            # Center the columns after summing: Σ(x − x̄)(y − ȳ)ᵀ = Σxyᵀ − Σx Σyᵀ / n
            (i, j): float(torch.addr(cross, self._total[i], self._total[j], alpha=-1 / self.samples).square().sum())
            for (i, j), cross in self._cross.items()
        }
        for (i, j), value in square.items():
            scale = (square[i, i] * square[j, j]) ** 0.5
            out[i, j] = out[j, i] = value / scale if scale > 0 else float("nan")  # undefined for constant outputs
        return out

    def _pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.models) for j in range(i, self.models)]


class Kernels:
    """Alternative to `Grams` for layers with more features than samples: stores the samples' inner products."""

    def __init__(self, models: int, samples: int):
        self.models, self.limit = models, samples
        self._held: list[list[Tensor]] = [[] for _ in range(models)]
        self.samples = 0

    def add(self, parts: Sequence[Tensor]) -> None:
        """Add a chunk of samples, up to the limit."""
        take = min(self.limit - self.samples, len(parts[0]))
        if take > 0:
            for chunks, part in zip(self._held, parts, strict=True):
                chunks.append(part[:take].reshape(take, -1).cpu())
            self.samples += take

    def cka(self) -> Tensor:
        """Return the CKA of every pair of models, [K, K]: ‖YᵀX‖²_F = ⟨XXᵀ, YYᵀ⟩."""
        kernels = []
        for chunks in self._held:
            x = torch.cat(chunks).double()
            x -= x.mean(0)
            kernels.append((x @ x.T).reshape(-1))
        inner = torch.stack([torch.stack([a @ b for b in kernels]) for a in kernels])
        scale = inner.diagonal().sqrt()
        return inner / torch.outer(scale, scale)


@dataclass(frozen=True)
class Similarity:
    """Pairwise CKA of several models per layer."""

    clients: Sequence[int]
    layers: Mapping[str, Tensor]  # layer -> [K, K]
    samples: Mapping[str, int]  # layer -> number of samples used

    def means(self) -> dict[str, float]:
        """Return the mean over pairs of different models per layer (CCVR, Fig. 2)."""
        off = ~torch.eye(len(self.clients), dtype=torch.bool)
        return {name: float(matrix[off].mean()) for name, matrix in self.layers.items()}


def similarity(
    model: SplitModel,
    weights: Mapping[int, Weights],
    batches: Iterable[Tensor],
    kernel_samples: int = 1000,
) -> Similarity:
    """Compute the CKA between all pairs of clients' models in every layer, on the same inputs (CCVR, Fig. 1 and 2).

    Args:
        model: Architecture of the clients.
        weights: Weights of each client.
        batches: Inputs, in batches.
        kernel_samples: Number of samples for the widest layers.
    """
    sums: dict[str, Grams | Kernels] = {}
    for x in batches:
        with torch.no_grad():
            each = [activations(model, x, w) for w in weights.values()]
        if not sums:
            widths = {name: a[0].numel() for name, a in each[0].items()}
            sums = _plan(widths, len(weights), kernel_samples)
        for name, total in sums.items():
            total.add([outputs[name] for outputs in each])
    return Similarity(list(weights), {n: s.cka() for n, s in sums.items()}, {n: s.samples for n, s in sums.items()})


def _plan(widths: Mapping[str, int], models: int, kernel_samples: int) -> dict[str, Grams | Kernels]:
    """Select Grams for narrow layers within the memory budget, and kernels on fewer samples for wide ones."""
    left, plan = float(BUDGET), {}
    for name, width in sorted(widths.items(), key=lambda item: item[1]):
        left -= 8 * width**2 * models * (models + 1) / 2
        plan[name] = Grams(models) if left >= 0 else Kernels(models, kernel_samples)
    return {name: plan[name] for name in widths}
