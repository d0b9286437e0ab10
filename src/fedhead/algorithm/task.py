"""Task shared by the server and all clients: sizes, local training and architecture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedhead.core.components.parameters import Checked
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training import per_client_counts
from fedhead.core.training.objectives import Multiclass, Objective
from fedhead.core.training.optimizers import SGD, Optimizer
from fedhead.core.training.per_client_counts import Amount
from fedhead.core.training.schedules import LRSchedule, learning_rate_factor
from fedhead.data.pool import Pool
from fedhead.models.split_model import SplitModel

ClassWeights = Literal["balanced", "balanced_per_client"] | tuple[Annotated[float, AtLeast(0)], ...]


@dataclass(frozen=True)
class LocalTraining(Checked):
    """Configuration of the clients' local training in a round.

    Args:
        epochs: Passes over the client's data: one number, one per client, or random (`per_client_counts.Uniform`).
        batch_size: Samples per step.
        optimizer: `fedhead.SGD`, `fedhead.Adam` or `fedhead.AdamW`.
        lr_decay: Factor of the learning rate per round.
        schedule: Schedule of the learning rate over rounds, multiplied with the decay.
        warmup_rounds: Number of rounds in which the learning rate rises to its full value.
        clip_norm: Maximum norm of a step's gradient; None: no clipping.
        drop_last: Whether to drop the last, partial batch of an epoch, unless it is the only one.
        persistent: Whether the optimizer's state persists across rounds.
        label_smoothing: Share of each target that is spread uniformly over all classes.
        steps: Number of steps instead of epochs, in the same forms; None: train for `epochs`.
        class_weights: Weight of each class in the loss: numbers, "balanced" (from the counts of all clients),
            or "balanced_per_client" (from each client's counts); None: equal weights.
    """

    epochs: Amount = 1
    batch_size: Annotated[int, AtLeast(1)] = 64
    optimizer: Optimizer = field(default_factory=lambda: SGD(lr=0.01))
    lr_decay: Annotated[float, Above(0), AtMost(1)] = 1.0
    schedule: LRSchedule = field(default_factory=LRSchedule)
    warmup_rounds: Annotated[int, AtLeast(0)] = 0
    clip_norm: Annotated[float, Above(0)] | None = None
    drop_last: bool = False
    persistent: bool = False
    label_smoothing: Annotated[float, AtLeast(0), Below(1)] = 0.0
    class_weights: ClassWeights | None = None
    steps: Amount | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        for name in ("epochs", "steps"):
            if getattr(self, name) == ():
                raise BadInput(f"LocalTraining: {name}: the list is empty, give one number per client")

    def check_clients(self, clients: int) -> None:
        """Raise `BadInput` if a list of numbers does not have one entry per client.

        Args:
            clients: Number of clients.
        """
        per_client_counts.check_clients(self.epochs, clients, "local_epochs")
        if self.steps is not None:
            per_client_counts.check_clients(self.steps, clients, "local_steps")

    def lr(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round.

        Args:
            round: Number of the round, from 1.
            rounds: Number of rounds of the run.

        Returns:
            The optimizer's learning rate with decay and schedule.
        """
        factor = learning_rate_factor(self.schedule, self.warmup_rounds, round - 1, rounds)
        return self.optimizer.lr * self.lr_decay ** (round - 1) * factor


@dataclass(frozen=True)
class Task:
    """Sizes, configuration and architecture, known to the server and all clients.

    Args:
        model: The architecture.
        classes: Number of classes.
        clients: Number of clients.
        rounds: Number of rounds.
        local: Configuration of local training.
        seed: Seed of the run.
        participation: Share of the clients that take part in a round.
        sizes: Training samples per client; known in simulations, empty at real sites.
        min_class_count: Minimum number of samples of a class; rows of smaller classes are not sent
            (`Algorithm.class_rows`).
        noise_shares: Number of clients that share the noise of a total (`Upload.min_clients`); 1: each adds all of it.
        objective: Objective: the loss of local training and the meaning of the outputs.
        pool: Training data of all clients, for oracles; simulations only.
    """

    model: SplitModel
    classes: int
    clients: int
    rounds: int
    local: LocalTraining
    seed: int = 0
    participation: float = 1.0
    sizes: tuple[int, ...] = ()
    min_class_count: int = 1
    noise_shares: int = 1
    objective: Objective = field(default_factory=Multiclass)
    pool: Pool | None = field(default=None, repr=False)
