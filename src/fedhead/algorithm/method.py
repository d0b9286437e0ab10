"""FedAvg as the base class of all methods, and the registry of methods."""

from __future__ import annotations

import dataclasses
from typing import cast

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.tree.tree import Tree, Weights


@dataclasses.dataclass(frozen=True)
class Method(Algorithm):
    """FedAvg: clients train the global model on their own data, the server averages the models.

    Client hooks are written for one client and are pure: values in, values out, no `.item()`, no branching on
    tensors.
    """

    @property
    def shared(self) -> tuple[str, ...]:
        """Parts of the model that are sent and averaged; the others stay with the client."""
        return PARTS

    def check_local(self, local: LocalTraining) -> None:
        """Check before the run that the method supports this local training; any by default.

        Args:
            local: Epochs, batch size and optimizer.

        Raises:
            BadInput: If it does not.
        """

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Return the server's initial state; by default the shared parts of the model.

        Args:
            w: The initial weights.
            task: Sizes and settings.

        Returns:
            The state, with the global model under `model`.
        """
        return Tree(model=w.part(*self.shared))

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Return a client's initial state; by default the parts that are not shared.

        Args:
            w: The initial weights.
            task: Sizes and settings.

        Returns:
            Client state, which never leaves the client.
        """
        parts = w.without(*self.shared)
        return Tree(own=parts) if parts else Tree()

    def start(self, client: Client) -> Weights:
        """Start from the server's model, combined with the client's own parts if some are not shared."""
        model = self._model(client.received, "start", "what clients receive")
        return client.state["own"].replace(model) if "own" in client.state else model

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the whole model."""
        return (Phase(self.loss),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Compute the loss of a batch; by default that of the run's objective, such as the mean cross entropy.

        Args:
            w: Weights that are trained.
            batch: Samples of the client. Rows of weight 0 are padding.
            client: The client, whose `apply` runs the model.

        Returns:
            A scalar that ignores rows of weight 0, or one value per sample, of which the engine takes the mean
            weighted by `batch.weight`.
        """
        return client.loss(client.apply(w, batch.x).logits, batch)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the shared parts without fixed head parameters, and keep the other parts."""
        parts = w.without(*self.shared)
        send = w.part(*self.shared).without(*client.task.model.fixed)
        return Reply(send=Tree(model=send), keep=Tree(own=parts) if parts else Tree())

    @property
    def adds_up(self) -> bool:
        """True for methods that average the clients' models as FedAvg does."""
        return type(self).aggregate is Method.aggregate

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Average the clients' models, weighted by their sample counts."""
        model = self._model(server, "aggregate", "the server's state")
        return server.replace(model=model.replace(replies.mean("model")))

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the averaged model, if all parts are shared."""
        return self._model(server, "global_model", "the server's state") if set(self.shared) == set(PARTS) else None

    def personal_model(self, client: Client) -> Weights:
        """Return the model that the client's next round would start from."""
        return self.start(client)

    def tuned_model(self, w: Weights, client: Client) -> Weights:
        """Return the client's model after local training, which fine-tuning stages keep.

        Args:
            w: The weights after local training.
            client: The client.

        Returns:
            Weights of the whole model.
        """
        return w

    def _model(self, tree: Tree, hook: str, where: str) -> Weights:
        """Return the entry `model` for a default hook.

        Raises:
            BadInput: If an overridden `init_server` or `broadcast` leaves it out.
        """
        if "model" in tree:
            return cast(Weights, tree["model"])
        entries = ", ".join(map(repr, tree)) or "nothing"
        raise BadInput(
            f"{type(self).__name__}: {where} has no 'model', which the default {hook} needs; it has {entries}: let "
            f"init_server return fh.Tree(model=w, …) and `broadcast` name 'model', or write {hook} too"
        )


METHODS = Registry.of(Method, home=["fedhead.methods"])
"""Registry of methods."""
method = METHODS.decorator
"""Class decorator that registers a subclass of `Method` under a name for recipes and the command line."""
