"""SCAFFOLD: control variates that correct the clients' drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.components.ranges import Above
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights


@method("scaffold")
@dataclass(frozen=True)
class Scaffold(Method):
    """Correct the clients' drift with control variates (Karimireddy et al., 2020).

    The paper's option II for plain SGD, c_i⁺ = c_i − c + (x − y_i)/(K η_l), is the mean of the round's K gradients. It
    stays a mean of them under momentum m, where x − y_i = η_l Σ_j g_j (1 − m^{K−j+1})/(1 − m), if K is replaced by the
    sum of these factors (`effective_steps`); gradients that do not change are then met exactly, for every K.
    """

    broadcast: ClassVar[tuple[str, ...]] = ("model", "control")
    sums: ClassVar[tuple[str, ...]] = ("control",)
    server_lr: Annotated[float, Above(0)] = 1.0  # η_g, the server's step size

    def check_local(self, local: LocalTraining) -> None:
        """Refuse steps that are no multiples of gradients."""
        if not isinstance(local.optimizer, SGD):
            raise BadInput("scaffold measures gradients by how far local SGD moved: use optimizer=sgd")
        if local.optimizer.nesterov:
            raise BadInput("scaffold measures gradients by how far local SGD moved: leave nesterov off")

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The model x and the server's control variate c = 0."""
        return super().init_server(w, task).replace(control=w.params.zeros())

    def init_client(self, w: Weights, task: Task) -> Tree:
        """The client's control variate c_i = 0."""
        return Tree(control=w.params.zeros())

    def correct(self, g: Tree, client: Client) -> Tree:
        """g_i(y) − c_i + c (Algorithm 1, line 10)."""
        drift = client.received["control"] - client.state["control"]
        return g + Tree({name: drift[name] for name in g})  # frozen parameters have no gradient, but a control of 0

    def finish(self, w: Weights, client: Client) -> Reply:
        """c_i⁺ = c_i − c + (x − y_i)/(K η_l), option II (line 12), with K as momentum makes it."""
        local, like = client.task.local, next(iter(w.params.values()))
        momentum = cast(SGD, local.optimizer).momentum
        steps = effective_steps(client.steps.to(like.dtype), momentum, local.persistent)
        moved = (self.start(client).params - w.params) / (steps * client.lr)
        control = client.state["control"] - client.received["control"] + moved
        sent = super().finish(w, client).send
        return Reply(send=sent.replace(control=control - client.state["control"]), keep=Tree(control=control))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """x ← x + η_g/|S| Σ (y_i − x), c ← c + 1/N Σ Δc_i (lines 16–17): every client counts alike in both."""
        old = server["model"]
        new = old.replace(replies.mean("model", [1.0] * len(replies)))
        params = old.params + self.server_lr * (new.params - old.params)
        control = server["control"] + replies.sum("control") / task.clients
        return server.replace(model=new.replace(params), control=control)


def effective_steps(steps: Tensor, momentum: float, persistent: bool = False) -> Tensor:
    """Return how often η·g the weights move in K steps of SGD whose gradient g does not change.

    From zero velocity this is Σ_{k=1..K} (1 − m^k)/(1 − m). A velocity that is kept from round to round moves them by
    K/(1 − m) once it has settled at g/(1 − m).

    Args:
        steps: K.
        momentum: m.
        persistent: Whether the velocity is kept from round to round.

    Returns:
        The number of steps of plain SGD that lead as far.
    """
    # in float64: the difference below cancels where m is near 1
    k, m = steps.double(), momentum
    settled = k / (1 - m)
    return (settled if persistent else settled - m * (1 - m**k) / (1 - m) ** 2).to(steps.dtype)
