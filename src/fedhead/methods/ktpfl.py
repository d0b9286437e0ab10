"""KT-pFL: clients teach each other through predictions on public data, weighted by learned coefficients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
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
    """Distil all clients' knowledge into each, mixed by coefficients that are learned (Zhang et al., 2021).

    A client's knowledge is what it says of public samples, softened; with `share="all"` ("+weight", for one
    architecture) it is the model itself, and the client goes on from its mixture. What its paper does in two exchanges
    is one here: a client trains, sends its knowledge, and is distilled into at the start of its next round.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ()
    temperature: Annotated[float, Above(0)] = 10.0  # T, of the soft predictions
    penalty: Annotated[float, AtLeast(0)] = 0.7  # ρ, weight of the pull of the coefficients to 1/K
    # η₃, the step of the coefficients; None: the public code's (`step_size`)
    coefficient_lr: Annotated[float, Above(0)] | None = None
    sharpness: Annotated[float, Above(0)] = 5.0  # the coefficients' rows are softmax(sharpness · c)
    distillation_epochs: Annotated[int, AtLeast(1)] = 1  # passes over the public data
    distillation_batch: Annotated[int, AtLeast(1)] = 256  # public samples per step
    # mse: the mean square of softmax(f_k(x)) minus the target, as in FedClassAvg's code
    distillation_loss: Literal["kl", "mse"] = "kl"
    # local epochs of the first round, in which there is nothing to distil yet; None: the run's
    initial_epochs: Annotated[int, AtLeast(1)] | None = None
    share: Literal["predictions", "all"] = "predictions"  # soft predictions on public data, or whole models
    # with share=all: how far towards its mixture a client's model is moved
    transfer: Annotated[float, AtLeast(0), AtMost(1)] = 1.0

    def __post_init__(self) -> None:
        """Refuse options that what is shared leaves without effect."""
        super().__post_init__()
        for field in dataclasses.fields(self):
            if field.name in _WITHOUT_EFFECT[self.share] and getattr(self, field.name) != field.default:
                raise BadInput(
                    f"KTpFL: {field.name}: {getattr(self, field.name)} would have no effect with share={self.share}: "
                    "leave it out, or share something else"
                )

    @property
    def shared(self) -> tuple[str, ...]:
        """Nothing is averaged by name, but mixing whole models needs one architecture."""
        return PARTS if self.share == "all" else ()

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """There must be public samples to speak of."""
        super().check(models, federation)
        if self.share == "predictions" and federation.public is None:
            raise BadInput(
                "ktpfl needs public data that all clients hold: set public in the recipe (public=mnist), "
                "or public=(x, y) of the federation"
            )

    # -- server -----------------------------------------------------------------------------------
    def init_server(self, w: Weights, task: Task) -> Tree:
        """No knowledge yet, and the same trust in everyone: c_kl = 1/K."""
        like = next(iter(w.values()))
        return Tree(knowledge=Tree(), coefficients=like.new_full((task.clients, task.clients), 1 / task.clients))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Take in the new knowledge, then learn the coefficients of those who sent it."""
        new = {str(k): sent["knowledge"] for k, sent in zip(replies.clients, replies.sent, strict=True)}
        merged = {**server["knowledge"], **new}
        knowledge = Tree({str(k): merged[str(k)] for k in sorted(map(int, merged))})
        return Tree(knowledge=knowledge, coefficients=self.learn(server["coefficients"], knowledge, replies.clients))

    def learn(self, c: Tensor, knowledge: Tree, clients: Sequence[int]) -> Tensor:
        """c_k ← softmax(s · (c_k − η₃ ∇[ MSE(S_k, Σ_l c_kl S_l) + ρ MSE(c_k, 1/K) ])) for these clients' rows.

        s is the sharpness: the softmax of such small numbers alone would stay close to 1/K. The gradient needs the
        inner products of the clients' knowledge alone. Who has sent nothing yet has weight 0.
        """
        known = [int(k) for k in knowledge]
        place = [known.index(k) for k in clients]
        gram = _inner_products(knowledge)
        rows = c[list(clients)][:, known]
        rows = rows / rows.sum(dim=1, keepdim=True)
        gradient = 2 * (rows @ gram - gram[place]) + 2 * self.penalty / len(known) * (rows - 1 / len(known))
        lr = step_size(gradient) if self.coefficient_lr is None else self.coefficient_lr
        rows = torch.softmax(self.sharpness * (rows - lr * gradient), dim=1)
        spread = c.new_zeros(len(clients), len(c))
        spread[:, known] = rows
        new = c.clone()
        new[list(clients)] = spread
        return new

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """The client's own mixture Σ_l c_kl S_l of what is known."""
        knowledge = server["knowledge"]
        if not knowledge:
            return Tree()
        row = server["coefficients"][client, [int(k) for k in knowledge]]
        return Tree(target=tree_mean(list(knowledge.values()), row.tolist()))

    # -- client -----------------------------------------------------------------------------------
    def init_client(self, w: Weights, task: Task) -> Tree:
        """The client's model."""
        return Tree(own=w)

    def start(self, client: Client) -> Weights:
        """Go on from the client's own model, or from the mixture of models."""
        own = cast(Weights, client.state["own"])
        if self.share == "predictions" or "target" not in client.received:
            return own
        return own.map(lambda mine, mixed: mine + self.transfer * (mixed - mine), client.received["target"])

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Distil what the others know, once there is something; then train on the client's own data."""
        private = [Phase(self.loss)]
        if self.initial_epochs is not None:
            private = [Phase(self.loss, epochs=self.initial_epochs, ends=1), Phase(self.loss, begins=2)]
        if self.share == "all":
            return tuple(private)
        public = Phase(
            self.distil, epochs=self.distillation_epochs, batch_size=self.distillation_batch, data="public", begins=2
        )
        return (public, *private)

    def distil(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """KL(Σ_l c_kl S_l ‖ softmax(f_k(x) / T)) on public samples, or the mean square."""
        target = client.received["target"]["soft"][batch.rows]
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
        """There is none: each client has its own."""
        return None

    def personal_model(self, client: Client) -> Weights:
        """The local model after training."""
        return cast(Weights, client.state["own"])


def step_size(gradient: Tensor) -> Tensor:
    """η₃ of the public code for each row [K, 1]: 5ⁿ, −5 ≤ n ≤ 5, that makes a coefficient's mean step 0.01 to 0.05.

    Soft predictions differ by little and the gradient with them: one step size for all would leave them at 1/K.
    """
    mean = gradient.abs().mean(dim=1, keepdim=True)
    return 5 ** torch.ceil(torch.log(0.01 / mean) / math.log(5)).clamp(-5, 5)


def _inner_products(knowledge: Tree) -> Tensor:
    """⟨S_k, S_l⟩ / |S| of all pairs; of models the sum over parameters, each divided by its size."""
    parts = [k.params if isinstance(k, Weights) else k for k in knowledge.values()]
    total: Tensor | None = None
    for name in parts[0]:
        rows = torch.stack([part[name].flatten() for part in parts])
        product = rows @ rows.T / rows.shape[1]
        total = product if total is None else total + product
    assert total is not None, "asked only when there is knowledge"
    return total
