"""FedAvgM: FedAvg with momentum on the server (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast, Below
from fedhead.core.tree.tree import Tree, Weights


@method("fedavgm")
@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum on the server (Hsu et al., 2019)."""

    beta: Annotated[float, AtLeast(0), Below(1)] = 0.9  # β, momentum
    damped: bool = True  # v ← βv + (1−β)Δ as MOON's and CCVR's experiments do; False: Hsu et al.'s v ← βv + Δ

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The model and a velocity at rest."""
        return super().init_server(w, task).replace(velocity=w.part(*self.shared).params.zeros())

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """w ← w − v; running statistics are averaged plainly, since a variance must not overshoot below 0."""
        old, new = server["model"], super().aggregate(server, replies, task)["model"]
        step = old.params - new.params  # Δ
        v = self.beta * server["velocity"] + ((1 - self.beta) if self.damped else 1.0) * step
        return server.replace(model=new.replace(old.params - v), velocity=v)
