"""FedRep: a shared representation under personal heads (Collins et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast
from fedhead.core.tree.tree import Tree, Weights


@method("fedrep")
@dataclass(frozen=True)
class FedRep(Method):
    """Shared representation with a personal head per client (Collins et al., 2021).

    It has no global model. FedETF's experiments train head and body for the run's local epochs each (both None)
    and test the averaged body with the initial, untrained head (`untrained_head`).
    """

    shared: ClassVar[tuple[str, ...]] = ("extractor", "projection")
    head_epochs: Annotated[int, AtLeast(1)] | None = 10  # local epochs of the head; None: the run's
    body_epochs: Annotated[int, AtLeast(1)] | None = 1  # local epochs of the representation; None: the run's
    untrained_head: bool = False  # global test of the averaged body with the initial head

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the representation, and the initial head if it is tested."""
        server = super().init_server(w, task)
        return server.replace(head=w.without(*self.shared)) if self.untrained_head else server

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the head on the fixed representation, then the representation with the fixed head (Algorithm 1)."""
        head = Phase(self.loss, trains=("classifier",), epochs=self.head_epochs)
        body = Phase(self.loss, trains=self.shared, epochs=self.body_epochs)
        return (head, body)

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the averaged body with the initial head if `untrained_head` is set, else None."""
        return server["model"].replace(server["head"]) if self.untrained_head else None
