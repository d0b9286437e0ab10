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
    """One exchange between server and clients: a download, local work, an upload."""

    name: ClassVar[str] = ""  # in records and errors: the registered one, or the class's own
    broadcast: ClassVar[tuple[str, ...]] = ("model",)  # server entries that every client receives
    sums: ClassVar[tuple[str, ...]] = ()  # sent entries of which the server only uses the plain sum over clients
    # sent entries with one row per class, zero for a class without samples: rows of small classes may be left out
    class_rows: ClassVar[tuple[str, ...]] = ()
    head: ClassVar[str | None] = None  # the head that the model must have, None: any
    oracle: ClassVar[bool] = False  # whether it needs all clients' data in one place, which only simulations have

    def __init_subclass__(cls, **settings: Any) -> None:
        """Name a class that nobody has named."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Raise `BadInput` before anything is computed, if these can't be used with each other."""
        self.check_head(models)

    def check_head(self, models: Sequence[SplitModel]) -> None:
        """Refuse models with another head than the one that is needed."""
        for model in models:
            if self.head is not None and model.head != self.head:
                raise BadInput(
                    f"{self.name} needs a model with the {self.head} head, this one has a {model.head} head: "
                    f"set model.head={self.head} in a recipe, or fedhead.with_head(model, {self.head!r}) in Python"
                )

    # -- server -----------------------------------------------------------------------------------
    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """What one client receives besides the broadcast."""
        return Tree()

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Raise `BadInput` for a reply that no client could have computed; only that client is left out then.

        Args:
            sent: What the client sent; names, shapes and types are right, and all numbers finite.
            samples: How many training samples the client has.
            task: The task with the client's own architecture.
        """

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """The server's new state."""
        raise NotImplementedError

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """The weights that local training starts from."""
        raise NotImplementedError

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The phases of local training, in order."""
        return ()

    def correct(self, g: Tree, client: Client) -> Tree:
        """The gradient that the optimizer sees."""
        return g

    def finish(self, w: Weights, client: Client) -> Reply:
        """What the client sends and what it keeps."""
        raise NotImplementedError

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """The model that is tested on the global test set, or None where there is none."""
        raise NotImplementedError

    def personal_model(self, client: Client) -> Weights:
        """The model that a client uses for itself."""
        raise NotImplementedError

    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """Scores of the classes, from what the global model says of a batch."""
        return out.logits

    def predict(self, w: Weights, x: Tensor, client: Client) -> Tensor:
        """Scores of the classes, from a client's own model."""
        return client.apply(w, x, train=False).logits


@dataclasses.dataclass(frozen=True)
class Method(Algorithm):
    """FedAvg: clients train the global model on their own data, the server averages what they send."""

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts of the model that travel; the others stay with the client."""
        return PARTS

    def check_local(self, local: LocalTraining) -> None:
        """Raise `BadInput` before anything is computed, for local training that can't be used."""

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The server's state before the first round."""
        return Tree(model=w.part(*self.shared))

    def init_client(self, w: Weights, task: Task) -> Tree:
        """A client's state before its first round."""
        own = w.without(*self.shared)
        return Tree(own=own) if own else Tree()

    def start(self, client: Client) -> Weights:
        """Begin from the server's model, with the client's own parts where some stay at home."""
        model = cast(Weights, client.received["model"])
        return client.state["own"].replace(model) if "own" in client.state else model

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the whole model."""
        return (Phase(self.loss),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Cross entropy on the client's samples.

        Returns:
            One number that leaves out the rows of weight 0, or one value per sample, of which the engine takes the
            mean weighted by `batch.weight`.
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
        """The averaged model, where all parts are shared."""
        return cast(Weights, server["model"]) if set(self.shared) == set(PARTS) else None

    def personal_model(self, client: Client) -> Weights:
        """What the client would start its next round from."""
        return self.start(client)

    def tuned_model(self, w: Weights, client: Client) -> Weights:
        """The client's own model right after local training, from the working model `w` and the client's state."""
        return w


@dataclasses.dataclass(frozen=True)
class Stage(Algorithm):
    """What happens after the rounds: one more exchange with all clients, on top of any method.

    The default queries nothing and changes nothing; a stage overrides what it needs, and finds the method that
    trained the model under `self.method`.
    """

    method: Method = dataclasses.field(default_factory=Method, repr=False, kw_only=True)

    def after(self, method: Method) -> Self:
        """This stage on top of `method`; raises `BadInput` if the two don't go together."""
        bound = dataclasses.replace(self, method=method)
        # what the method broadcasts is needed to start from its model, whatever the stage adds
        object.__setattr__(bound, "broadcast", tuple(dict.fromkeys((*method.broadcast, *type(self).broadcast))))
        return bound

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """What the method would send to this client."""
        return self.method.per_client(server, client, task)

    def earlier(self) -> Stage | None:
        """A stage whose global model this one begins from, in place of the rounds'."""
        return None

    def steps(self) -> dict[str, Stage]:
        """The states on the way whose personal models are tested too, in order, each as a stage that looks back."""
        return {}

    def start(self, client: Client) -> Weights:
        """Begin from what the method would begin its next round with."""
        return self.method.start(client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send nothing, keep what there was."""
        return Reply(send=Tree(), keep=client.state)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Leave the server's state as it is."""
        return server

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """The method's."""
        return self.method.global_model(server, task)

    def personal_model(self, client: Client) -> Weights:
        """The method's."""
        return self.method.personal_model(client)

    def predict(self, w: Weights, x: Tensor, client: Client) -> Tensor:
        """As the method does."""
        return self.method.predict(w, x, client)


METHODS = Registry[type[Method]](
    "method", "fedhead.methods", lambda found, name: check_class(found, name, Method), home=["fedhead.methods"]
)
STAGES = Registry[type[Stage]](
    "stage", "fedhead.stages", lambda found, name: check_class(found, name, Stage), home=["fedhead.stages"]
)

A = TypeVar("A", bound=type[Algorithm])


def method(name: str) -> Callable[[A], A]:
    """Register a method under a name, for recipes and the command line."""
    return _named(name, METHODS)


def stage(name: str) -> Callable[[A], A]:
    """Register a stage under a name, for recipes and the command line."""
    return _named(name, STAGES)


def _named(name: str, registry: Registry[Any]) -> Callable[[A], A]:
    def enter(cls: A) -> A:
        registry.register(name, cls)
        cls.name = name
        return cls

    return enter
