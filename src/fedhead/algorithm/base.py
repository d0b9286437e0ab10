"""Base class of methods and stages.

A method overrides only what its paper changes; the defaults are FedAvg (McMahan et al., 2017). Client hooks are
written for one client and are pure: values in, values out, no `.item()`, no branching on tensors. A hook may replace
entries of its input trees, which are copies; in-place changes of their tensors raise an error. The engine owns the
client axis and runs the same code in a loop, in a stack, in lanes or across machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.component import Component
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Output
from fedhead.core.training.objectives import NAMES as OBJECTIVE_NAMES
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel


class Algorithm(Component):
    """One exchange between server and clients: a download, local work, an upload.

    Attributes:
        broadcast: Entries of the server's state that every client receives.
        sums: Sent entries of which the server only uses the plain sum over clients.
        class_rows: Sent entries with one row per class, zero for a class without samples; rows of small classes may be
            set to zero.
        class_sums: Sent sums over all classes, from which the client itself leaves out its small classes.
        reveals: Sentence about each sent entry, by its name or a prefix of its full name, for `fedhead wire`.
        head: Required head of the model; None: any.
        objectives: Names of the supported objectives; all by default.
        oracle: Whether it needs the pooled data of all clients, which only simulations have.
    """

    broadcast: ClassVar[tuple[str, ...]] = ("model",)
    sums: ClassVar[tuple[str, ...]] = ()
    class_rows: ClassVar[tuple[str, ...]] = ()
    class_sums: ClassVar[tuple[str, ...]] = ()
    reveals: ClassVar[Mapping[str, str]] = {
        "model": "weights trained on all samples of the client: whether a sample was among them, and if they were few, "
        "much of the samples",
    }
    head: ClassVar[str | None] = None
    objectives: ClassVar[tuple[str, ...]] = OBJECTIVE_NAMES
    oracle: ClassVar[bool] = False

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check before the run that the algorithm supports the models and the data.

        Args:
            models: One model per architecture.
            federation: The clients' data.

        Raises:
            BadInput: If it does not.
        """
        self.check_head(models)

    def check_head(self, models: Sequence[SplitModel]) -> None:
        """Check that all models have the required head.

        Args:
            models: One model per architecture.

        Raises:
            BadInput: If a model has another head.
        """
        for model in models:
            if self.head is not None and model.head != self.head:
                raise BadInput(
                    f"{self.name} needs a model with the {self.head} head, this one has a {model.head} head: "
                    f"set model.head={self.head} in a recipe, or fedhead.with_head(model, {self.head!r}) in Python"
                )

    @property
    def own_loss(self) -> bool:
        """True if the loss is not the run's, so that label smoothing and class weights have no effect."""
        return False

    @property
    def protected(self) -> bool:
        """True if what clients send has differential privacy."""
        return False

    # -- server -----------------------------------------------------------------------------------
    @property
    def aggregates(self) -> bool:
        """True if the server's state depends on replies; False for stages that keep their result at clients."""
        return True

    @property
    def adds_up(self) -> bool:
        """True if the server needs only totals over clients: sums, and means weighted by samples (`Replies.total`)."""
        return False

    def public(self, task: Task) -> Tree:
        """Return sent entries that the server knows before; they are not part of a secure sum.

        Args:
            task: Task with the client's own architecture.

        Returns:
            Entries by name; none by default.
        """
        return Tree()

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return the entries that one client receives in addition to the broadcast; none by default.

        Args:
            server: The server's state.
            client: Number of the client.
            task: Sizes and settings.

        Returns:
            Entries of `client.received`.
        """
        return Tree()

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Raise `BadInput` for an impossible reply; the round then continues without that client.

        Args:
            sent: Sent entries; names, shapes and types are valid, and all numbers are finite.
            samples: Number of the client's training samples.
            task: Task with the client's own architecture.
        """

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the server's new state from the replies of a round.

        Args:
            server: The server's state.
            replies: Replies of the clients.
            task: Sizes and settings.

        Returns:
            New state with the same entries.
        """
        raise NotImplementedError

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """Return the weights that local training starts from.

        Args:
            client: The client, with its received entries and its state.

        Returns:
            Weights of the whole model.
        """
        raise NotImplementedError

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Return the phases of local training; none by default.

        Args:
            task: Sizes and settings.

        Returns:
            The phases, in order.
        """
        return ()

    def correct(self, g: Tree, client: Client) -> Tree:
        """Correct the gradient before the optimizer's step; unchanged by default.

        Args:
            g: Named gradients of the parameters that the phase trains.
            client: The client.

        Returns:
            Gradients with the same names.
        """
        return g

    def finish(self, w: Weights, client: Client) -> Reply:
        """Return the client's reply: the entries to send and its new state.

        Args:
            w: The weights after local training.
            client: The client.

        Returns:
            The reply.
        """
        raise NotImplementedError

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the model that is tested on the global test set.

        Args:
            server: The server's state.
            task: Sizes and settings.

        Returns:
            Weights of the whole model, or None if there is no global model.
        """
        raise NotImplementedError

    def personal_model(self, client: Client) -> Weights:
        """Return the client's personal model.

        Args:
            client: The client.

        Returns:
            Weights of the whole model.
        """
        raise NotImplementedError

    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the architecture of the resulting models; the run's by default.

        Args:
            model: Architecture of the run, or of one client.

        Returns:
            Model whose weights have the names and shapes of `global_model` and `personal_model`.
        """
        return model

    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """Return class scores from the outputs of the global model; its logits by default.

        Args:
            out: Outputs of the model for a batch.
            w: Weights of the model.
            task: Sizes and settings.

        Returns:
            Scores, [B, C]; the highest is the prediction.
        """
        return out.logits

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return class scores of a client's personal model; its logits by default.

        Args:
            w: Weights of the model.
            x: Normalized inputs.
            client: The client.

        Returns:
            Scores, [B, C]; the highest is the prediction.
        """
        return client.apply(w, x, train=False).logits
