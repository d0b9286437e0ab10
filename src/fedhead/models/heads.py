"""Classifier heads: a linear one, and those whose geometry a paper fixes (normalized, simplex ETF, prototypes)."""

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

HeadLike = str | Callable[..., nn.Module]  # what names a head in Python: its text, class or function
CALLED_WITH = ("features", "classes")
HEADS = Registry[Callable[..., nn.Module]](
    "head",
    "fedhead.heads",
    lambda found, name: check_function(
        found, name, "head", CALLED_WITH, "a torch module", filled_in=("key", "scale"), base=nn.Module
    ),
)
"""The heads by name."""
head = HEADS.decorator
"""Register a head under a name: a class of `nn.Module` or a function, called with (features, classes)."""
# One that also takes `scale` or `key` gets the model's first temperature and the key of its random numbers; further
# parameters have defaults, and are set as in `head=mine.py:Cosine(margin=0.2)`.


class ChosenHead(NamedTuple):
    """A head as it was asked for."""

    name: str
    builder: Callable[..., nn.Module]
    parameters: Mapping[str, Any]  # its own, as given with it

    def make(self, features: int, classes: int, key: int, scale: float) -> nn.Module:
        """Return the head for features of a dimension.

        Args:
            features: Dimension of the features.
            classes: Number of classes.
            key: Key of its random numbers, if it takes one.
            scale: Initial temperature, if it takes one and was not given its own.
        """
        known = parameters(self.builder)
        given = {word: value for word, value in (("key", key), ("scale", scale)) if word in known}
        with user_code(f"head {self.name}"):
            made = self.builder(features, classes, **{**given, **self.parameters})
        require(isinstance(made, nn.Module), f"head {self.name} made {type(made).__name__}, not a torch module")
        outputs = getattr(made, "out_features", classes)
        if outputs != classes:
            raise BadInput(f"head {self.name} has {outputs} outputs for {classes} classes: return one with as many")
        for word, value in (("in_features", features), ("out_features", classes), ("kind", self.name)):
            if not hasattr(made, word):
                setattr(made, word, value)
        return made


def choose_head(head: HeadLike, folders: Iterable[str | Path] = ()) -> ChosenHead:
    """Return the head of a text such as `etf` or `mine.py:Cosine(0.2)`, or of a class or function.

    Args:
        head: The text, class or function.
        folders: Where `file.py:Name` is looked for, before the working directory.

    Raises:
        BadInput: If there is no such head, or its parameters do not fit.
    """
    call, builder = HEADS.resolve_call(head, folders)
    own = dict(list(parameters(builder).items())[len(CALLED_WITH) :])
    own.pop("key", None)
    return ChosenHead(call.name, builder, call.arguments("head", own))


@head("linear")
def linear(features: int, classes: int) -> nn.Linear:
    """Return a linear layer with bias."""
    return nn.Linear(features, classes)


@head("normalized")
class NormalizedLinear(nn.Linear):
    """A linear classifier whose weight vectors are scaled to unit norm, so that no class wins by norm (clsnorm)."""

    kind = "normalized"

    def __init__(self, features: int, classes: int):
        super().__init__(features, classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Compute the logits φ_cᵀz / ‖φ_c‖ (CCVR, Section 3.3)."""
        return F.linear(z, F.normalize(self.weight, dim=1))


def etf(classes: int, dim: int, key: int) -> Tensor:
    """Return a randomly rotated simplex equiangular tight frame: unit vectors as far apart as possible, [C, d].

    FedETF's Eq. 3 is V = √(C/(C−1)) U (I − 11ᵀ/C) with orthonormal columns in U ∈ R^{d×C}, which needs d ≥ C. With B
    an orthonormal basis of the space orthogonal to 1, I − 11ᵀ/C = BBᵀ and V = √(C/(C−1)) (UB) Bᵀ, where UB has C−1
    orthonormal columns: drawing those directly gives the same frames and serves d = C−1 as well.
    """
    require(classes >= 2, f"a simplex ETF needs at least 2 classes, not {classes}")
    require(
        dim >= classes - 1,
        f"an ETF of {classes} classes needs at least {classes - 1} dimensions (C-1), not {dim}: "
        f"C vectors with pairwise cosines -1/(C-1) do not fit into fewer; set dim={classes} (the default)",
    )
    draw = torch.randn(dim, classes - 1, generator=random.generator(key), dtype=torch.float64)
    q, r = torch.linalg.qr(draw)
    q = q * r.diagonal().sign()  # QR leaves the columns' signs to the library: fix them
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
    """A fixed simplex-ETF classifier on unit features, with a learnable temperature (FedETF, Eq. 3-6)."""

    kind = "etf"
    fixed = frozenset({"weight"})  # V stays as it is in federated training; personalization may tune it

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
    """Cosines between a feature and one prototype per class, times a learnable scale (FedNH).

    The prototypes start orthogonal and are moved by the method's own rule, never by gradients.
    """

    kind = "prototype"
    fixed = frozenset({"weight"})

    def __init__(self, features: int, classes: int, scale: float = 1.0):
        super().__init__()
        self.in_features, self.out_features = features, classes
        start = nn.init.orthogonal_(torch.empty(classes, features))
        self.weight = nn.Parameter(F.normalize(start, dim=1))  # rows of C > d prototypes are not unit by themselves
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, z: Tensor) -> Tensor:
        """Compute the logits s · cos(w_c, z)."""
        return self.scale * F.linear(F.normalize(z, dim=-1), F.normalize(self.weight, dim=1))
