"""SCAFFOLD: control variates that correct the clients' drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.errors import BadInput
from fedhead.core.optimizers import SGD
from fedhead.core.ranges import Above
from fedhead.core.tree import Tree, Weights


@method("scaffold")
@dataclass(frozen=True)
class Scaffold(Method):
    """Correct the clients' drift with control variates (Karimireddy et al., 2020).

    Option II takes a step for η_l times a gradient, as it is in the paper's plain SGD. Under momentum m a gradient
    moves the weights by η_l/(1−m) in the long run, so that is what the control variates are measured in.
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
        return g.map(lambda a, b: a + b, Tree({name: drift[name] for name in g}))

    def finish(self, w: Weights, client: Client) -> Reply:
        """c_i⁺ = c_i − c + (x − y_i)/(K η_l), option II (line 12)."""
        momentum = cast(SGD, client.task.local.optimizer).momentum
        moved = (self.start(client).params - w.params) / (client.steps * client.lr / (1 - momentum))
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
