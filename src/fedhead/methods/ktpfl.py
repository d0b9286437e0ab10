"""KT-pFL: clients teach each other through predictions on public data, weighted by learned coefficients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.training.losses import distillation, mean
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import tree_mean

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel

_WITHOUT_EFFECT = {
    "predictions": ("transfer",),
    "all": ("temperature", "distillation_epochs", "distillation_batch", "distillation_loss"),
}


@method("ktpfl")
@dataclass(frozen=True)
class KTpFL(Method):
    """Distillation of all clients' knowledge into each client, mixed by learned coefficients (Zhang et al., 2021).

    A client's knowledge is its soft predictions on public samples. With `share="all"` ("+weight", for one
    architecture) it is the model itself, and the client starts from the mixture of models. The paper's two exchanges
    per round are one here: a client trains, sends its knowledge, and distils at the start of its next round.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ()
    reveals: ClassVar[Mapping[str, str]] = {
        "knowledge": "predictions on public samples by a model trained on all samples of the client; with share=all, "
        "that model",
    }
    temperature: Annotated[float, Above(0)] = 10.0  # T, temperature of the soft predictions
    penalty: Annotated[float, AtLeast(0)] = 0.7  # ρ, weight of the penalty that pulls the coefficients towards 1/K
    # η₃, learning rate of the coefficients; None: the public code's (`step_size`)
    coefficient_lr: Annotated[float, Above(0)] | None = None
    sharpness: Annotated[float, Above(0)] = 5.0  # sharpness s of the coefficients softmax(s · c)
    distillation_epochs: Annotated[int, AtLeast(1)] = 1  # epochs of distillation on the public data
    distillation_batch: Annotated[int, AtLeast(1)] = 256  # public samples per distillation step
    # distillation loss; mse: mean squared difference of softmax(f_k(x)) and the target, as in FedClassAvg's code
    distillation_loss: Literal["kl", "mse"] = "kl"
    # local epochs of the first round, which has no distillation; None: the run's
    initial_epochs: Annotated[int, AtLeast(1)] | None = None
    share: Literal["predictions", "all"] = "predictions"  # shared knowledge: soft predictions, or whole models
    # share of the way from the client's model to its mixture, with share=all
    transfer: Annotated[float, AtLeast(0), AtMost(1)] = 1.0

    def __post_init__(self) -> None:
        """Refuse options that have no effect with the chosen `share`."""
        super().__post_init__()
        for field in dataclasses.fields(self):
            if field.name in _WITHOUT_EFFECT[self.share] and getattr(self, field.name) != field.default:
                raise BadInput(
                    f"KTpFL: {field.name}: {getattr(self, field.name)} would have no effect with share={self.share}: "
                    "leave it out, or share something else"
                )

    @property
    def shared(self) -> tuple[str, ...]:
        """Whole models with `share="all"`, which needs one architecture; otherwise nothing."""
        return PARTS if self.share == "all" else ()

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that the federation has public samples if predictions are shared."""
        super().check(models, federation)
        if self.share == "predictions" and federation.public is None:
            raise BadInput(
                "ktpfl needs public data that all clients hold: set public in the recipe (public=mnist), "
                "or public=(x, y) of the federation"
            )

    # -- server -----------------------------------------------------------------------------------
    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize empty knowledge and the coefficients c_kl = 1/K."""
        like = next(iter(w.values()))
        return Tree(knowledge=Tree(), coefficients=like.new_full((task.clients, task.clients), 1 / task.clients))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the new knowledge and update the coefficients of the clients that sent it."""
        new = {str(k): sent["knowledge"] for k, sent in zip(replies.clients, replies.sent, strict=True)}
        merged = {**server["knowledge"], **new}
        knowledge = Tree({str(k): merged[str(k)] for k in sorted(map(int, merged))})
        return Tree(knowledge=knowledge, coefficients=self.learn(server["coefficients"], knowledge, replies.clients))

    def learn(self, c: Tensor, knowledge: Tree, clients: Sequence[int]) -> Tensor:
        """Update c_k ← softmax(s · (c_k − η₃ ∇[ MSE(S_k, Σ_l c_kl S_l) + ρ MSE(c_k, 1/K) ])) for the given clients.

        s is the sharpness: without it the softmax of such small numbers stays close to 1/K. The gradient needs only the
        inner products of the clients' knowledge. Clients that have sent nothing yet have weight 0.
        """
        known = [int(k) for k in knowledge]
        positions = [known.index(k) for k in clients]
        gram = _inner_products(knowledge)
        rows = c[list(clients)][:, known]
        rows = rows / rows.sum(dim=1, keepdim=True)
        gradient = 2 * (rows @ gram - gram[positions]) + 2 * self.penalty / len(known) * (rows - 1 / len(known))
        lr = step_size(gradient) if self.coefficient_lr is None else self.coefficient_lr
        rows = torch.softmax(self.sharpness * (rows - lr * gradient), dim=1)
        spread = c.new_zeros(len(clients), len(c))
        spread[:, known] = rows
        new = c.clone()
        new[list(clients)] = spread
        return new

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return the client's mixture Σ_l c_kl S_l of the knowledge so far."""
        knowledge = server["knowledge"]
        if not knowledge:
            return Tree()
        row = server["coefficients"][client, [int(k) for k in knowledge]]
        return Tree(target=tree_mean(list(knowledge.values()), row.tolist()))

    # -- client -----------------------------------------------------------------------------------
    def init_client(self, w: Weights, task: Task) -> Tree:
        """Keep the client's model."""
        return Tree(own=w)

    def start(self, client: Client) -> Weights:
        """Start from the client's own model, or from the mixture of models."""
        model = cast(Weights, client.state["own"])
        if self.share == "predictions" or "target" not in client.received:
            return model
        return model.map(lambda mine, mixed: mine + self.transfer * (mixed - mine), client.received["target"])

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Distil from the second round on, then train on the client's data."""
        private = [Phase(self.loss)]
        if self.initial_epochs is not None:
            private = [Phase(self.loss, epochs=self.initial_epochs, last_round=1), Phase(self.loss, first_round=2)]
        if self.share == "all":
            return tuple(private)
        public = Phase(
            self.distil,
            epochs=self.distillation_epochs,
            batch_size=self.distillation_batch,
            data="public",
            first_round=2,
        )
        return (public, *private)

    def distil(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return KL(Σ_l c_kl S_l ‖ softmax(f_k(x) / T)) on public samples, or the mean squared error."""
        if "target" not in client.received:
            raise BadInput(
                "ktpfl: no client has sent predictions before round 2, so there is nothing to distil: make sure that "
                "clients take part in round 1, with a higher participation or fewer stragglers"
            )
        target = client.received["target"]["soft"][batch.indices]
        logits = client.apply(w, batch.x).logits
        if self.distillation_loss == "mse":
            return mean((torch.softmax(logits, dim=-1) - target).square().mean(-1), batch.weight.to(logits.dtype))
        return distillation(logits, target, batch.weight, self.temperature)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the client's knowledge S_k = softmax(f_k(public) / T), or its model; keep the model."""
        if self.share == "all":
            return Reply(send=Tree(knowledge=w), keep=Tree(own=w))
        logits = client.on_public(lambda x: client.apply(w, x, train=False).logits)
        soft = torch.softmax(logits / self.temperature, dim=-1)
        return Reply(send=Tree(knowledge=Tree(soft=soft)), keep=Tree(own=w))

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return None: each client has its own model."""
        return None

    def personal_model(self, client: Client) -> Weights:
        """Return the trained local model."""
        return cast(Weights, client.state["own"])


def step_size(gradient: Tensor) -> Tensor:
    """Return the public code's η₃ for each row, [K, 1]: 5ⁿ with −5 ≤ n ≤ 5, for a mean step of 0.01 to 0.05.

    Soft predictions differ by little, so gradients are small: with one step size the coefficients would stay at 1/K.
    """
    mean = gradient.abs().mean(dim=1, keepdim=True)
    return 5 ** torch.ceil(torch.log(0.01 / mean) / math.log(5)).clamp(-5, 5)


def _inner_products(knowledge: Tree) -> Tensor:
    """Return ⟨S_k, S_l⟩ / |S| of all pairs; for models the sum over parameters, each divided by its size."""
    parts = [k.params if isinstance(k, Weights) else k for k in knowledge.values()]
    total: Tensor | None = None
    for name in parts[0]:
        rows = torch.stack([part[name].flatten() for part in parts])
        product = rows @ rows.T / rows.shape[1]
        total = product if total is None else total + product
    assert total is not None, "called only with knowledge"
    return total
