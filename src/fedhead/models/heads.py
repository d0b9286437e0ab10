"""Classifier heads: linear, normalized, simplex ETF and prototypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.components.component_check import check_function
from fedhead.core.components.parameters import parameters
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, require, user_code
from fedhead.core.training import random

HeadLike = str | Callable[..., nn.Module]  # text, class or function that specifies a head
CALLED_WITH = ("features", "classes")
HEADS = Registry[Callable[..., nn.Module]](
    "head",
    "fedhead.heads",
    lambda component, name: check_function(
        component, name, "head", CALLED_WITH, "a torch module", filled_in=("key", "scale"), base=nn.Module
    ),
)
"""Registry of heads."""
head = HEADS.decorator
"""Decorator that registers a head under a name: an `nn.Module` class or a function (features, classes)."""
# A head with a parameter `scale` gets the initial temperature, one with `key` the key of its random numbers. Other
# parameters need defaults, and are set as in `head=mine.py:Cosine(margin=0.2)`.


class ChosenHead(NamedTuple):
    """Head as specified by the user."""

    name: str
    builder: Callable[..., nn.Module]
    parameters: Mapping[str, Any]  # parameters given by the user

    def make(self, features: int, classes: int, key: int, scale: float) -> nn.Module:
        """Build the head.

        Args:
            features: Dimension of the features.
            classes: Number of classes.
            key: Key of its random numbers, if it has this parameter.
            scale: Initial temperature, if it has this parameter and the user did not set it.
        """
        known = parameters(self.builder)
        defaults = {word: value for word, value in (("key", key), ("scale", scale)) if word in known}
        with user_code(f"head {self.name}"):
            head = self.builder(features, classes, **{**defaults, **self.parameters})
        require(isinstance(head, nn.Module), f"head {self.name} made {type(head).__name__}, not a torch module")
        outputs = getattr(head, "out_features", classes)
        if outputs != classes:
            raise BadInput(f"head {self.name} has {outputs} outputs for {classes} classes: return one with as many")
        for word, value in (("in_features", features), ("out_features", classes), ("kind", self.name)):
            if not hasattr(head, word):
                setattr(head, word, value)
        return head


def choose_head(head: HeadLike, folders: Iterable[str | Path] = ()) -> ChosenHead:
    """Resolve a head from a text such as `etf` or `mine.py:Cosine(0.2)`, or from a class or function.

    Args:
        head: The text, class or function.
        folders: Folders in which `file.py:Name` is searched before the working directory.

    Raises:
        BadInput: If the head is unknown, or its parameters are invalid.
    """
    call, builder = HEADS.resolve_call(head, folders)
    known = dict(list(parameters(builder).items())[len(CALLED_WITH) :])
    known.pop("key", None)
    return ChosenHead(call.name, builder, call.arguments("head", known))


@head("linear")
def linear(features: int, classes: int) -> nn.Linear:
    """Build a linear layer with bias."""
    return nn.Linear(features, classes)


@head("normalized")
class NormalizedLinear(nn.Linear):
    """Linear classifier with weight vectors of unit norm, so that no class is favoured by its norm (clsnorm)."""

    kind = "normalized"

    def __init__(self, features: int, classes: int):
        super().__init__(features, classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Compute the logits φ_cᵀz / ‖φ_c‖ (CCVR, Section 3.3)."""
        return F.linear(z, F.normalize(self.weight, dim=1))


def etf(classes: int, dim: int, key: int) -> Tensor:
    """Return a randomly rotated simplex equiangular tight frame: C maximally separated unit vectors, [C, d].

    FedETF's Eq. 3 is V = √(C/(C−1)) U (I − 11ᵀ/C) with orthonormal columns in U ∈ R^{d×C}, which needs d ≥ C. With B
    an orthonormal basis of the space orthogonal to 1, I − 11ᵀ/C = BBᵀ and V = √(C/(C−1)) (UB) Bᵀ, where UB has C−1
    orthonormal columns. Drawing UB directly gives the same frames and also supports d = C−1.
    """
    require(classes >= 2, f"a simplex ETF needs at least 2 classes, not {classes}")
    require(
        dim >= classes - 1,
        f"an ETF of {classes} classes needs at least {classes - 1} dimensions (C-1), not {dim}: "
        f"C vectors with pairwise cosines -1/(C-1) do not fit into fewer; set dim={classes} (the default)",
    )
    draw = torch.randn(dim, classes - 1, generator=random.generator(key), dtype=torch.float64)
    q, r = torch.linalg.qr(draw)
    q = q * r.diagonal().sign()  # make the columns' signs independent of the QR library
    vectors: Tensor = math.sqrt(classes / (classes - 1)) * _simplex_basis(classes) @ q.T
    return vectors.to(torch.get_default_dtype())


def _simplex_basis(classes: int) -> Tensor:
    """Return orthonormal columns B [C, C−1] that span the complement of the all-ones vector (Helmert's contrasts)."""
    step = torch.arange(1, classes, dtype=torch.float64)
    basis = torch.triu(torch.ones(classes, classes - 1, dtype=torch.float64))
    basis[1:] -= torch.diag(step)
    return basis / torch.sqrt(step * (step + 1))


@head("etf")
class ETFHead(nn.Module):
    """Fixed simplex-ETF classifier on unit features, with a learnable temperature (FedETF, Eq. 3-6)."""

    kind = "etf"
    fixed = frozenset({"weight"})  # V is fixed in federated training; personalization may tune it

    def __init__(self, features: int, classes: int, key: int = 0, scale: float = 1.0):
        super().__init__()
        self.in_features, self.out_features = features, classes
        self.weight = nn.Parameter(etf(classes, features, key))
        self.scale = nn.Parameter(torch.tensor(float(scale)))  # β

    def forward(self, z: Tensor) -> Tensor:
        """Compute the logits β v_cᵀμ of the unit feature μ = z / ‖z‖."""
        return self.scale * F.linear(F.normalize(z, dim=-1), self.weight)


@head("prototype")
class PrototypeHead(nn.Module):
    """Cosine classifier with one prototype per class and a learnable scale (FedNH).

    Prototypes start orthogonal and are updated by the method's rule, not by gradients.
    """

    kind = "prototype"
    fixed = frozenset({"weight"})

    def __init__(self, features: int, classes: int, scale: float = 1.0):
        super().__init__()
        self.in_features, self.out_features = features, classes
        start = nn.init.orthogonal_(torch.empty(classes, features))
        self.weight = nn.Parameter(F.normalize(start, dim=1))  # with C > d, `orthogonal_` gives no unit rows
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, z: Tensor) -> Tensor:
        """Compute the logits s · cos(w_c, z)."""
        return self.scale * F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=1))
