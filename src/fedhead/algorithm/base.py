"""Methods and stages: what a client does, what crosses the wire, and what the server makes of it.

A method overrides only what its paper changes; the defaults are FedAvg (McMahan et al., 2017). The client's half
is written for one client and is pure: values in, values out, no `.item()`, no branching on tensors. The engine owns
the client axis and runs the same file in a loop, in a stack, in lanes or across machines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.batch import PARTS, Batch, Output
from fedhead.core.component_check import check_class
from fedhead.core.errors import BadInput
from fedhead.core.losses import cross_entropy
from fedhead.core.parameters import Checked
from fedhead.core.registry import Registry
from fedhead.core.tree import Tree, Weights

if TYPE_CHECKING:
    from fedhead.data.federation import Federation
    from fedhead.models.split_model import SplitModel


class Algorithm(Checked):
    """One exchange between server and clients: a download, local work, an upload.

    Attributes:
        name: Name in records and errors: the registered one, or that of the class.
        broadcast: Entries of the server's state that every client receives.
        sums: Sent entries of which the server only uses the plain sum over clients.
        class_rows: Sent entries with one row per class, zero for a class without samples: rows of small classes may be
            left out.
        head: The head that the model must have; None: any.
        oracle: Whether it needs all clients' data in one place, which only simulations have.
    """

    name: ClassVar[str] = ""
    broadcast: ClassVar[tuple[str, ...]] = ("model",)
    sums: ClassVar[tuple[str, ...]] = ()
    class_rows: ClassVar[tuple[str, ...]] = ()
    head: ClassVar[str | None] = None
    oracle: ClassVar[bool] = False

    def __init_subclass__(cls, **settings: Any) -> None:
        """Give a class without a name that of the class."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check, before anything is computed, that this can be used with the models and the data.

        Args:
            models: One model per architecture.
            federation: The clients' data.

        Raises:
            BadInput: If they can't be used with each other.
        """
        self.check_head(models)

    def check_head(self, models: Sequence[SplitModel]) -> None:
        """Check that all models have the head that is needed.

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

    # -- server -----------------------------------------------------------------------------------
    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return what one client receives besides the broadcast; nothing by default.

        Args:
            server: The server's state.
            client: Number of the client.
            task: Sizes and settings.

        Returns:
            Entries of `client.received`.
        """
        return Tree()

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Raise `BadInput` for a reply that no client could have computed; only that client is left out then.

        Args:
            sent: What the client sent; names, shapes and types are right, and all numbers finite.
            samples: How many training samples the client has.
            task: The task with the client's own architecture.
        """

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the server's new state from the replies of a round.

        Args:
            server: The server's state.
            replies: What the clients sent.
            task: Sizes and settings.

        Returns:
            The new state, with the same entries as before.
        """
        raise NotImplementedError

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """Return the weights that local training starts from.

        Args:
            client: The client: what it received and what it kept.

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
        """Return the gradient that the optimizer sees; it is unchanged by default.

        Args:
            g: Gradients by name, of what the phase trains.
            client: The client.

        Returns:
            Gradients with the same names.
        """
        return g

    def finish(self, w: Weights, client: Client) -> Reply:
        """Return what the client sends and what it keeps.

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
            Weights of the whole model, or None where there is no global one.
        """
        raise NotImplementedError

    def personal_model(self, client: Client) -> Weights:
        """Return the model that a client uses for itself.

        Args:
            client: The client.

        Returns:
            Weights of the whole model.
        """
        raise NotImplementedError

    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """Return the scores of the classes from the outputs of the global model; its logits by default.

        Args:
            out: Outputs of the model for a batch.
            w: Weights of the model.
            task: Sizes and settings.

        Returns:
            Scores, [B, C]; the highest is the prediction.
        """
        return out.logits

    def predict(self, w: Weights, x: Tensor, client: Client) -> Tensor:
        """Return the scores of the classes from a client's own model; its logits by default.

        Args:
            w: Weights of the model.
            x: Inputs, normalized.
            client: The client.

        Returns:
            Scores, [B, C]; the highest is the prediction.
        """
        return client.apply(w, x, train=False).logits


@dataclasses.dataclass(frozen=True)
class Method(Algorithm):
    """FedAvg: clients train the global model on their own data, the server averages what they send.

    Hooks of the client's half see one client and are pure: values in, values out, no `.item()`, no branching on
    tensors.
    """

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts of the model that are sent and averaged; the others stay with the client."""
        return PARTS

    def check_local(self, local: LocalTraining) -> None:
        """Check, before anything is computed, that this local training can be used; any can by default.

        Args:
            local: Epochs, batch size and optimizer.

        Raises:
            BadInput: If it can't.
        """

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Return the server's state before the first round; by default the shared parts of the model.

        Args:
            w: The initial weights.
            task: Sizes and settings.

        Returns:
            The state, with the global model under `model`.
        """
        return Tree(model=w.part(*self.shared))

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Return a client's state before its first round; by default the parts that are not shared.

        Args:
            w: The initial weights.
            task: Sizes and settings.

        Returns:
            The state, which stays with the client.
        """
        own = w.without(*self.shared)
        return Tree(own=own) if own else Tree()

    def start(self, client: Client) -> Weights:
        """Start from the server's model, with the client's own parts where some are not shared."""
        model = cast(Weights, client.received["model"])
        return client.state["own"].replace(model) if "own" in client.state else model

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the whole model."""
        return (Phase(self.loss),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Compute the loss of a batch; the mean cross entropy by default.

        Args:
            w: The weights that are trained.
            batch: Samples of the client. Rows of weight 0 are padding.
            client: The client, whose `apply` runs the model.

        Returns:
            One number that leaves out the rows of weight 0, or one value per sample, of which the engine takes the mean
            weighted by `batch.weight`.
        """
        return cross_entropy(client.apply(w, batch.x).logits, batch.y, batch.weight)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the shared parts, keep the others; what the head fixes is known to everyone already."""
        own = w.without(*self.shared)
        send = w.part(*self.shared).without(*client.task.model.fixed)
        return Reply(send=Tree(model=send), keep=Tree(own=own) if own else Tree())

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Average the clients' models, weighted by their sample counts."""
        return server.replace(model=server["model"].replace(replies.mean("model")))

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the averaged model, if all parts are shared."""
        return cast(Weights, server["model"]) if set(self.shared) == set(PARTS) else None

    def personal_model(self, client: Client) -> Weights:
        """Return what the client would start its next round from."""
        return self.start(client)

    def tuned_model(self, w: Weights, client: Client) -> Weights:
        """Return the client's own model right after local training, which fine-tuning stages keep.

        Args:
            w: The weights after local training.
            client: The client.

        Returns:
            Weights of the whole model.
        """
        return w


@dataclasses.dataclass(frozen=True)
class Stage(Algorithm):
    """One more exchange with all clients after the rounds, on top of any method, such as a calibration.

    By default it asks for nothing and changes nothing; a stage overrides what it needs.

    Args:
        method: The method that trained the model; set by `after`.
    """

    method: Method = dataclasses.field(default_factory=Method, repr=False, kw_only=True)

    def after(self, method: Method) -> Self:
        """Return this stage on top of a method.

        A stage that needs something of the method checks it here.

        Args:
            method: The method that trained the model.

        Returns:
            A copy with `self.method` set.

        Raises:
            BadInput: If the two can't be used together.
        """
        bound = dataclasses.replace(self, method=method)
        # what the method broadcasts is needed to start from its model, whatever the stage adds
        object.__setattr__(bound, "broadcast", tuple(dict.fromkeys((*method.broadcast, *type(self).broadcast))))
        return bound

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return what the method would send to this client."""
        return self.method.per_client(server, client, task)

    def earlier(self) -> Stage | None:
        """Return a stage whose global model this one starts from, or None to start from that of the rounds."""
        return None

    def steps(self) -> dict[str, Stage]:
        """Return the intermediate states whose personal models are evaluated too.

        Each is given as a stage whose `personal_model` reads that state from what `finish` kept.

        Returns:
            Stages by the name of the state, in order.
        """
        return {}

    def start(self, client: Client) -> Weights:
        """Start from what the method would start its next round from."""
        return self.method.start(client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send nothing, keep the client's state."""
        return Reply(send=Tree(), keep=client.state)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Leave the server's state as it is."""
        return server

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the method's global model."""
        return self.method.global_model(server, task)

    def personal_model(self, client: Client) -> Weights:
        """Return the method's personal model."""
        return self.method.personal_model(client)

    def predict(self, w: Weights, x: Tensor, client: Client) -> Tensor:
        """Return the method's scores."""
        return self.method.predict(w, x, client)


METHODS = Registry[type[Method]](
    "method", "fedhead.methods", lambda found, name: check_class(found, name, Method), home=["fedhead.methods"]
)
STAGES = Registry[type[Stage]](
    "stage", "fedhead.stages", lambda found, name: check_class(found, name, Stage), home=["fedhead.stages"]
)

A = TypeVar("A", bound=type[Algorithm])


def method(name: str) -> Callable[[A], A]:
    """Register a method under a name, for recipes and the command line.

    Args:
        name: The name.

    Returns:
        A decorator of subclasses of `Method`.
    """
    return _named(name, METHODS)


def stage(name: str) -> Callable[[A], A]:
    """Register a stage under a name, for recipes and the command line.

    Args:
        name: The name.

    Returns:
        A decorator of subclasses of `Stage`.
    """
    return _named(name, STAGES)


def _named(name: str, registry: Registry[Any]) -> Callable[[A], A]:
    def enter(cls: A) -> A:
        registry.register(name, cls)
        cls.name = name
        return cls

    return enter
