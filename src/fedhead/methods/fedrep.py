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
    """Average the representation alone; each client fits its own head to it (Collins et al., 2021).

    There is no global model. FedETF's experiments train head and body for the run's local epochs each (both None)
    and test the averaged body under the initial head, which nobody trains (`untrained_head`).
    """

    shared: ClassVar[tuple[str, ...]] = ("extractor", "projection")
    head_epochs: Annotated[int, AtLeast(1)] | None = 10  # local epochs for the head, None: the run's
    body_epochs: Annotated[int, AtLeast(1)] | None = 1  # local epochs for the representation, None: the run's
    untrained_head: bool = False  # test the averaged body under the initial head

    def init_server(self, w: Weights, task: Task) -> Tree:
        """The representation, and the initial head where it is to be tested."""
        server = super().init_server(w, task)
        return server.replace(head=w.without(*self.shared)) if self.untrained_head else server

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The head on the fixed representation, then the representation under the fixed head (Algorithm 1)."""
        head = Phase(self.loss, trains=("classifier",), epochs=self.head_epochs)
        body = Phase(self.loss, trains=self.shared, epochs=self.body_epochs)
        return (head, body)

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """None, or the averaged body under the head that nobody trained."""
        return server["model"].replace(server["head"]) if self.untrained_head else None
