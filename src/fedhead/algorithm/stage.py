"""Base class of stages, and the registry of stages."""

from __future__ import annotations

import dataclasses
import math
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
from fedhead.privacy.base import Protection
from fedhead.privacy.dp import Release


@dataclasses.dataclass(frozen=True)
class Stage(Algorithm):
    """One exchange with all clients after the rounds of any method, such as a calibration.

    By default clients send nothing and nothing changes; a stage overrides the hooks that it needs.

    Args:
        method: Method that trained the model; set by `on_method`.
        release: Share of the privacy budget; set by `protect`, None: no differential privacy.
    """

    method: Method = dataclasses.field(default_factory=Method, repr=False, kw_only=True)
    release: Release | None = dataclasses.field(default=None, repr=False, kw_only=True)

    def on_method(self, method: Method) -> Self:
        """Bind this stage to a method.

        Stages check their requirements on the method here.

        Args:
            method: Method that trained the model.

        Returns:
            A copy with `self.method` set.

        Raises:
            BadInput: If the two can't be used together.
        """
        bound = dataclasses.replace(self, method=method)
        # starting from the method's model needs all that the method broadcasts
        object.__setattr__(bound, "broadcast", tuple(dict.fromkeys((*method.broadcast, *type(self).broadcast))))
        return bound

    def protect(self, protection: Protection, releases: int) -> Self:
        """Return the stage with differential privacy of what its clients send.

        Args:
            protection: Protection of the run's stages.
            releases: Number of stages that share its budget.

        Returns:
            A copy with `self.release` set.

        Raises:
            BadInput: If the stage can't be protected.
        """
        raise BadInput(f"privacy: {protection.name} can't protect what clients send in the stage {self.name}")

    @property
    def protected(self) -> bool:
        """True if what clients send has differential privacy."""
        return self.release is not None

    @property
    def mu(self) -> float:
        """μ of Gaussian differential privacy that one reply of each client spends; infinite without protection."""
        return math.inf

    def add_noise(self, sent: Tree, client: int, task: Task) -> Tree:
        """Add a client's noise to its reply, outside of the executor; none by default.

        Args:
            sent: Entries from `finish`.
            client: Number of the client.
            task: Sizes and settings.

        Returns:
            Entries that leave the client.
        """
        return sent

    def check_counts(self, count: Tensor) -> None:
        """Check the samples per class before the run; called only in simulations, which know all clients' data.

        Args:
            count: Training samples per class over all clients, [C].

        Raises:
            BadInput: If the stage can't work with them.
        """

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Return the entries that the method sends to this client."""
        return self.method.per_client(server, client, task)

    def prerequisite(self) -> Stage | None:
        """Return the stage whose global model this one starts from; None: start from the model of the rounds."""
        return None

    def chain(self) -> list[Stage]:
        """Return the exchanges of the stage, in order: its prerequisites, bound to the method, and the stage.

        Returns:
            At least the stage itself, as the last one.
        """
        earlier = self.prerequisite()
        return [self] if earlier is None else [*earlier.on_method(self.method).chain(), self]

    def start_after_prerequisite(self, server: Tree, calibrated: Tree, task: Task) -> Tree:
        """Return the server's state that this stage starts from after its prerequisite.

        Args:
            server: Server state after the rounds.
            calibrated: Server state after the prerequisite.
            task: Sizes and settings.

        Returns:
            By default the state after the rounds with the prerequisite's global model.
        """
        prerequisite = self.prerequisite()
        assert prerequisite is not None, "called only with a prerequisite"
        calibrated_model = prerequisite.on_method(self.method).global_model(calibrated, task)
        return server.replace(model=server["model"].replace(calibrated_model))

    def steps(self) -> dict[str, Stage]:
        """Return one stage per intermediate step whose personal models are evaluated too.

        The `personal_model` of such a stage is the client's model after that step, read from the client state.

        Returns:
            Stages keyed by the step's name, in order.
        """
        return {}

    def start(self, client: Client) -> Weights:
        """Start from the model that the method's next round would start from."""
        return self.method.start(client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send nothing and keep the client's state."""
        return Reply(send=Tree(), keep=client.state)

    def add(self, total: Tree, sent: Tree) -> Tree:
        """Add a reply to the sums so far, entry by entry; called only if `adds_up`.

        Args:
            total: Sums so far, which may be modified in place; empty before the first reply.
            sent: Entries that a client sent; `check_reply` has accepted them.

        Returns:
            New sums, which `aggregate` reads from `Replies.total`.
        """
        return total.map(Tensor.add, sent) if total else sent.clone()

    def summary_for_comparison(self, sent: Tree) -> Tree:
        """Return a summary of a reply for `find_inconsistent_replies`; the whole reply by default.

        Args:
            sent: Entries that the client sent; `check_reply` has accepted them.

        Returns:
            Named tensors, which should be small.
        """
        return sent

    def find_inconsistent_replies(self, digests: Mapping[int, Tree]) -> dict[int, str]:
        """Find replies that can't be aggregated with the others; these clients are excluded.

        Args:
            digests: Results of `summary_for_comparison`, keyed by client.

        Returns:
            Reason of each exclusion, keyed by client.
        """
        return {}

    @property
    def aggregates(self) -> bool:
        """True if the stage overrides `aggregate`."""
        return type(self).aggregate is not Stage.aggregate

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Return the server's state unchanged."""
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
"""Registry of stages."""
stage = STAGES.decorator
"""Class decorator that registers a subclass of `Stage` under a name for recipes and the command line."""


def bind(stages: Iterable[Stage], method: Method) -> tuple[Stage, ...]:
    """Bind stages to a method, in order.

    Raises:
        BadInput: If a stage does not support the method, or is given twice.
    """
    bound = tuple(stage.on_method(method) for stage in stages)
    names = [stage.name for stage in bound]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"stages: {twice[0]} is given twice, and its results would be mixed up; name each once")
    return bound
