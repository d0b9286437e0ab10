"""SCAFFOLD: control variates that correct the clients' drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from fedhead.client import Client
from fedhead.errors import BadInput, outside
from fedhead.exchange import Method, method
from fedhead.optim import SGD
from fedhead.tree import Tree, Weights
from fedhead.types import Local, Replies, Reply, Task


@method("scaffold")
@dataclass(frozen=True)
class Scaffold(Method):
    """Correct the clients' drift with control variates (Karimireddy et al., 2020).

    Option II takes a step for η_l times a gradient, as it is in the paper's plain SGD. Under momentum m a gradient
    moves the weights by η_l/(1−m) in the long run, so that is what the control variates are measured in.
    """

    downlink: ClassVar[tuple[str, ...]] = ("model", "control")
    server_lr: float = 1.0  # η_g, the server's step size

    def __post_init__(self) -> None:
        """Refuse a server that would step backwards, or nowhere."""
        if not self.server_lr > 0:
            raise outside("method.server_lr", self.server_lr, "over 0")

    def check_local(self, local: Local) -> None:
        """Refuse steps that are no multiples of gradients."""
        if not isinstance(local.optimizer, SGD):
            raise BadInput("scaffold measures gradients by how far local SGD moved: use optimizer=sgd")

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The model x and the server's control variate c = 0."""
        return super().init_server(w, task).replace(control=w.params.zeros())

    def init_client(self, w: Weights, task: Task) -> Tree:
        """The client's control variate c_i = 0."""
        return Tree(control=w.params.zeros())

    def correct(self, g: Tree, me: Client) -> Tree:
        """g_i(y) − c_i + c (Algorithm 1, line 10)."""
        drift = me.down["control"] - me.state["control"]
        return g.map(lambda a, b: a + b, Tree({name: drift[name] for name in g}))

    def finish(self, w: Weights, me: Client) -> Reply:
        """c_i⁺ = c_i − c + (x − y_i)/(K η_l), option II (line 12)."""
        momentum = cast(SGD, me.task.local.optimizer).momentum
        moved = (self.start(me).params - w.params) / (me.steps * me.lr / (1 - momentum))
        control = me.state["control"] - me.down["control"] + moved
        sent = super().finish(w, me).send
        return Reply(send=sent.replace(control=control - me.state["control"]), keep=Tree(control=control))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """x ← x + η_g/|S| Σ (y_i − x), c ← c + 1/N Σ Δc_i (lines 16–17): every client counts alike in both."""
        old = server["model"]
        new = old.replace(replies.mean("model", [1.0] * len(replies)))
        params = old.params + self.server_lr * (new.params - old.params)
        control = server["control"] + replies.sum("control") / task.clients
        return server.replace(model=new.replace(params), control=control)
