"""SCAFFOLD: control variates that correct the clients' drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Control variates that correct the clients' drift (Karimireddy et al., 2020).

    With plain SGD, the paper's option II c_i⁺ = c_i − c + (x − y_i)/(K η_l) is the mean of the round's K gradients.
    With momentum m, x − y_i = η_l Σ_j g_j (1 − m^{K−j+1})/(1 − m). Replacing K by the sum of these factors
    (`effective_steps`) gives a weighted mean of the gradients again, which is exact if they are constant.
    """

    broadcast: ClassVar[tuple[str, ...]] = ("model", "control")
    sums: ClassVar[tuple[str, ...]] = ("control",)
    reveals: ClassVar[Mapping[str, str]] = {
        "control": "change of the client's mean gradient, over all of its samples: as much as weights",
    }
    server_lr: Annotated[float, Above(0)] = 1.0  # η_g, learning rate of the server

    def check_local(self, local: LocalTraining) -> None:
        """Check that local steps are multiples of gradients: SGD without Nesterov momentum."""
        if not isinstance(local.optimizer, SGD):
            raise BadInput("scaffold measures gradients by how far local SGD moved: use optimizer=sgd")
        if local.optimizer.nesterov:
            raise BadInput("scaffold measures gradients by how far local SGD moved: leave nesterov off")

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the model x and the server's control variate c = 0."""
        return super().init_server(w, task).replace(control=_trained(w, task).zeros())

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Initialize the client's control variate c_i = 0."""
        return Tree(control=_trained(w, task).zeros())

    def correct(self, g: Tree, client: Client) -> Tree:
        """Return g_i(y) − c_i + c (Algorithm 1, line 10)."""
        drift = client.received["control"] - client.state["control"]
        return g + Tree({name: drift[name] for name in g})  # a stage may train fewer parameters

    def finish(self, w: Weights, client: Client) -> Reply:
        """Keep c_i⁺ = c_i − c + (x − y_i)/(K η_l), option II (line 12), with K corrected for momentum."""
        local, like = client.task.local, next(iter(w.params.values()))
        momentum = cast(SGD, local.optimizer).momentum
        steps = effective_steps(client.steps.to(like.dtype), momentum, local.persistent)
        start, end = (_trained(weights, client.task) for weights in (self.start(client), w))
        moved = (start - end) / (steps * client.lr)
        control = client.state["control"] - client.received["control"] + moved
        sent = super().finish(w, client).send
        return Reply(send=sent.replace(control=control - client.state["control"]), keep=Tree(control=control))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Update x ← x + η_g/|S| Σ (y_i − x) and c ← c + 1/N Σ Δc_i (lines 16–17), both unweighted."""
        old = server["model"]
        new = old.replace(replies.mean("model", [1.0] * len(replies)))
        params = old.params + self.server_lr * (new.params - old.params)
        control = server["control"] + replies.sum("control") / task.clients
        return server.replace(model=new.replace(params), control=control)


def _trained(w: Weights, task: Task) -> Tree:
    """Return the parameters that have control variates: all that local training may change."""
    return w.params.without(*task.model.fixed)


def effective_steps(steps: Tensor, momentum: float, persistent: bool = False) -> Tensor:
    """Return the displacement after K steps of SGD with a constant gradient g, in units of η·g.

    From zero velocity this is Σ_{k=1..K} (1 − m^k)/(1 − m). A velocity that persists across rounds gives
    K/(1 − m) after it has converged to g/(1 − m).

    Args:
        steps: K, the number of local steps.
        momentum: m, the momentum of SGD.
        persistent: Whether the velocity persists across rounds.

    Returns:
        The equivalent number of steps of plain SGD.
    """
    # in float64: the difference below cancels where m is near 1
    k, m = steps.double(), momentum
    settled = k / (1 - m)
    return (settled if persistent else settled - m * (1 - m**k) / (1 - m) ** 2).to(steps.dtype)
