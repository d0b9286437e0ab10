"""FedAvgM: FedAvg with momentum on the server (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast, Below
from fedhead.core.tree.tree import Tree, Weights


@method("fedavgm")
@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum on the server (Hsu et al., 2019)."""

    adds_up: ClassVar[bool] = True  # the server needs only the mean model
    beta: Annotated[float, AtLeast(0), Below(1)] = 0.9  # β, momentum of the server's update
    damped: bool = True  # damped momentum v ← βv + (1−β)Δ, as in MOON and CCVR; False: v ← βv + Δ (Hsu et al.)

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the model and the velocity v = 0."""
        return super().init_server(w, task).replace(velocity=w.part(*self.shared).params.zeros())

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Update w ← w − v; average running statistics without momentum, which could make a variance negative."""
        old, new = server["model"], super().aggregate(server, replies, task)["model"]
        step = old.params - new.params  # Δ
        v = self.beta * server["velocity"] + ((1 - self.beta) if self.damped else 1.0) * step
        return server.replace(model=new.replace(old.params - v), velocity=v)
