"""Stages, which follow the rounds of any method, and the registry of stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights


@dataclasses.dataclass(frozen=True)
class Stage(Algorithm):
    """One more exchange with all clients after the rounds, on top of any method, such as a calibration.

    By default it asks for nothing and changes nothing; a stage overrides what it needs.

    Args:
        method: The method that trained the model; set by `on_method`.
    """

    method: Method = dataclasses.field(default_factory=Method, repr=False, kw_only=True)

    def on_method(self, method: Method) -> Self:
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

    def check_counts(self, count: Tensor) -> None:
        """Check, before anything is computed, the samples per class; asked where all clients' data is in one place.

        Args:
            count: Training samples per class of all clients together, [C].

        Raises:
            BadInput: If the stage can't work with them.
        """

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return what the method would send to this client."""
        return self.method.per_client(server, client, task)

    def prerequisite(self) -> Stage | None:
        """Return a stage whose global model this one starts from, or None to start from that of the rounds."""
        return None

    def start_after_prerequisite(self, server: Tree, calibrated: Tree, task: Task) -> Tree:
        """Return the server's state that this stage starts from, once its prerequisite is done.

        Args:
            server: The server's state after the rounds.
            calibrated: The server's state after the prerequisite.
            task: Sizes and settings.

        Returns:
            The state after the rounds with the prerequisite's global model, by default.
        """
        prerequisite = self.prerequisite()
        assert prerequisite is not None, "asked only where there is one"
        calibrated_model = prerequisite.on_method(self.method).global_model(calibrated, task)
        return server.replace(model=server["model"].replace(calibrated_model))

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

    @property
    def adds_up(self) -> bool:
        """Whether the server needs only sums over clients, so that a reply is added to `add`'s total and not kept."""
        return False

    def add(self, total: Tree, sent: Tree) -> Tree:
        """Add a reply to the sums so far; asked where `adds_up`.

        Args:
            total: The sums so far, which may be written to; empty before the first reply.
            sent: What a client sent; it has passed `check_reply`.

        Returns:
            The new sums, as `aggregate` reads them from `Replies.total`.
        """
        raise NotImplementedError

    def summary_for_comparison(self, sent: Tree) -> Tree:
        """Return what `find_inconsistent_replies` compares of a reply; all of it by default.

        Args:
            sent: What the client sent; it has passed `check_reply`.

        Returns:
            Named tensors, small where replies are large.
        """
        return sent

    def find_inconsistent_replies(self, digests: Mapping[int, Tree]) -> dict[int, str]:
        """Return which replies can't be aggregated with the others, and why; those clients are left out then.

        Args:
            digests: What `summary_for_comparison` returned, by client.

        Returns:
            Why a client's reply is left out, by client.
        """
        return {}

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Leave the server's state as it is."""
        return server

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the method's global model."""
        return self.method.global_model(server, task)

    def personal_model(self, client: Client) -> Weights:
        """Return the method's personal model."""
        return self.method.personal_model(client)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the method's scores."""
        return self.method.predict(w, x, client)


STAGES = Registry.of(Stage, home=["fedhead.stages"])
"""The stages by name."""
stage = STAGES.decorator
"""Register a stage under a name, for recipes and the command line: a decorator of subclasses of `Stage`."""


def bind(stages: Iterable[Stage], method: Method) -> tuple[Stage, ...]:
    """Return stages on top of a method, in order.

    Raises:
        BadInput: If a stage does not go with the method, or is there twice.
    """
    bound = tuple(stage.on_method(method) for stage in stages)
    names = [stage.name for stage in bound]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"stages: {twice[0]} is given twice, and its results would be mixed up; name each once")
    return bound
