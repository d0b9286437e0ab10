"""Differential privacy of the rounds: noise on the mean of updates, noise multipliers, and the account.

Both accounts depend on the number of rounds alone, so a resumed run continues them. `client_dp` uses the probability of
a client in a round, `sample_dp` counts every client in every round.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.local_schedule import TRAIN, draw_arguments
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.privacy import accounting, noise
from fedhead.privacy.accounting import Steps
from fedhead.privacy.base import Protection
from fedhead.privacy.client_dp import ClientDP
from fedhead.privacy.guarantee import Guarantee
from fedhead.privacy.sample_dp import SampleDP

CLIP = "clip_norm"  # entry of the server state with the adaptive clipping norm
P = TypeVar("P", bound=Protection)
_CLIP_RATE = 0.2  # η_C, learning rate of the clipping norm (Andrew et al., 2021)
_NOT_PROTECTED = "results of tests and validation, and the numbers of samples of clients, are not protected"


class PrivateRounds(ABC, Generic[P]):
    """Account of a run's rounds.

    Args:
        protection: Protection of the rounds.
        rounds: Number of planned rounds.
        sizes: Number of training samples of each client, as far as they are known.

    Attributes:
        unit: What one record of the data is, as in `Guarantee`.
    """

    unit: ClassVar[str]

    def __init__(self, protection: P, rounds: int, sizes: Mapping[int, int]):
        self.protection, self.rounds, self.sizes = protection, rounds, dict(sizes)

    @abstractmethod
    def worst(self, rounds: int) -> tuple[Steps, float]:
        """Return the steps and the noise multiplier of the client or clients with the largest ε after some rounds."""

    @abstractmethod
    def description(self, multiplier: float) -> tuple[str, list[str]]:
        """Return the mechanism and the assumptions of the guarantee."""

    def affords(self, rounds: int) -> bool:
        """Return whether the budget suffices for this many rounds."""
        steps, multiplier = self.worst(rounds)
        return accounting.epsilon_of(steps, multiplier, self.protection.delta) <= self.protection.epsilon * (1 + 1e-9)

    def check(self, round: int, sizes: Mapping[int, int]) -> None:
        """Raise `BadInput` if the budget does not suffice for a round with clients of these numbers of samples."""
        self.sizes.update(sizes)
        if not self.affords(round):
            raise BadInput(
                f"privacy: {self.protection.name}: round {round} would exceed the budget of epsilon = "
                f"{self.protection.epsilon:g}: raise noise_multiplier, or leave it out; without it, lower epsilon"
            )

    def guarantee(self, rounds: int) -> Guarantee:
        """Return the guarantee of all rounds so far."""
        protection, (steps, multiplier) = self.protection, self.worst(rounds)
        mechanism, assumptions = self.description(multiplier)
        return Guarantee(
            release=f"rounds 1 to {rounds}",
            epsilon=accounting.epsilon_of(steps, multiplier, protection.delta),
            delta=protection.delta,
            unit=self.unit,
            neighbourhood="add or remove one",
            mechanism=mechanism,
            assumptions=assumptions,
            accountant=accounting.accountant_of(steps),
            secret=protection.test_seed is None,
            mu=accounting.mu_of(steps, multiplier),
        )


# -- clients ------------------------------------------------------------------------------------------
class PrivateClients(PrivateRounds[ClientDP]):
    """Account and noise of `client_dp`.

    Args:
        protection: Protection.
        rounds: Number of planned rounds.
        clients: Number of clients.
        cohort: Expected number of clients in a round.
    """

    unit = "client"

    def __init__(self, protection: ClientDP, rounds: int, clients: int, cohort: int):
        super().__init__(protection, rounds, {})
        self.cohort, self.rate = cohort, cohort / clients

    @cached_property
    def multiplier(self) -> float:
        """Noise multiplier z, of the updates and the counts of adaptive clipping together."""
        protection = self.protection
        if protection.noise_multiplier is not None:
            return protection.noise_multiplier
        return accounting.multiplier_of({self.rate: self.rounds}, protection.epsilon, protection.delta)

    def cohort_seed(self, seed: int) -> int:
        """Return the secret seed of the cohorts: the run's seed is public, and known cohorts amplify nothing."""
        return seed if self.protection.test_seed is not None else self._secret_seed

    @cached_property
    def _secret_seed(self) -> int:
        return secrets.randbits(63)

    def worst(self, rounds: int) -> tuple[Steps, float]:
        """Return the steps and the noise multiplier, which are the same for all clients."""
        return {self.rate: rounds}, self.multiplier

    def description(self, multiplier: float) -> tuple[str, list[str]]:
        """Return the mechanism and the assumptions of the guarantee."""
        clip = "adaptive" if self.protection.quantile is not None else f"{self.protection.clip:g}"
        central = "the server is trusted (central model): it sees each client's update and adds the noise once"
        hidden = ["nobody who sees the models knows the cohorts"] if self.rate < 1 else []
        mechanism = f"Gaussian noise on the mean of updates, multiplier {multiplier:.4g}, clipping norm {clip}"
        return mechanism, [central, *hidden, _NOT_PROTECTED]

    def mean(self, server: Tree, round: int, task: Task) -> PrivateMean:
        """Return the mean of a round."""
        return PrivateMean(self, server, round, task.model.fixed)


class PrivateMean:
    """Callable that `Replies.mean` uses in a run with `client_dp`: the noisy mean of clipped updates.

    The sum is divided by the planned size of the cohort, whoever replies, so that its sensitivity is known.

    Args:
        privacy: Account and noise of the run.
        server: Server state before the exchange.
        round: Number of the round.
        fixed: Parameters that clients don't send.
    """

    def __init__(self, privacy: PrivateClients, server: Tree, round: int, fixed: frozenset[str]):
        self._privacy, self._server, self._fixed, self.component = privacy, server, fixed, privacy.protection
        self._source = noise.generator(self.component.test_seed, "round", round)
        self._within: float | None = None  # noisy share of updates within the clipping norm

    @property
    def clip(self) -> float:
        """Clipping norm C of the round."""
        return float(self._server[CLIP]) if CLIP in self._server else self.component.clip

    def __call__(self, name: str, sent: Sequence[Tree]) -> Tree:
        """Return the server's model plus the noisy mean of the updates."""
        if name != "model":
            raise BadInput(f"privacy: client_dp protects the mean of models; the method averages {name!r} as well")
        old, cohort = self._server[name].without(*self._fixed), self._privacy.cohort
        total, within = old.map(lambda t: torch.zeros_like(t, dtype=torch.float64)), 0.0
        for tree in sent:
            update = old.map(lambda before, after: after.double() - before.double(), tree)
            length = math.sqrt(sum(float(t.square().sum()) for t in update.tensors()))
            factor = min(1.0, self.clip / length) if length else 1.0
            total = total.map(lambda t, u, factor=factor: t + factor * u, update)
            within += 0.5 if length <= self.clip else -0.5
        multiplier = self._privacy.multiplier
        if self.component.quantile is not None:
            # Theorem 1 of Andrew et al. (2021): counts with noise σ_b, updates with z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2)
            counts = max(cohort / 20, multiplier)
            multiplier = (multiplier**-2 - (2 * counts) ** -2) ** -0.5
            self._within = 0.5 + (within + float(noise.gaussian(self._source, (), counts))) / cohort

        def noisy(before: Tensor, t: Tensor) -> Tensor:
            drawn = noise.gaussian(self._source, tuple(t.shape), multiplier * self.clip).to(t.device)
            return (before.double() + (t + drawn) / cohort).to(before.dtype)

        new: Tree = old.map(noisy, total)
        return new

    def remember(self, algorithm: Algorithm, server: Tree) -> Tree:
        """Return the new server state with the next clipping norm, C ← C exp(−η_C (b̃ − γ))."""
        if self.component.quantile is None or self._within is None:
            return server
        clip = self.clip * math.exp(-_CLIP_RATE * (self._within - self.component.quantile))
        return server.replace({CLIP: torch.tensor(clip, dtype=torch.float64)})


# -- samples ------------------------------------------------------------------------------------------
class PrivateSamples(PrivateRounds[SampleDP]):
    """Account and noise multipliers of `sample_dp`: each client has its own, from its own sampling rate.

    Args:
        protection: Protection.
        method: Method of the rounds.
        task: Task of the clients.
        stragglers: Policy for late clients, which train only partially.
    """

    unit = "sample"

    def __init__(self, protection: SampleDP, method: Method, task: Task, stragglers: Stragglers | None):
        super().__init__(protection, task.rounds, {k: size for k, size in enumerate(task.sizes) if size})
        self._method, self._task, self._stragglers = method, task, stragglers
        self._steps: dict[tuple[int, int], list[Counter[float]]] = {}  # by client and samples, after each round
        self._multipliers: dict[frozenset[tuple[float, int]], float] = {}  # by the steps of the planned rounds

    def epsilon(self, client: int, samples: int, rounds: Iterable[int]) -> float:
        """Return ε of a client after these rounds; a round that it has repeated counts again."""
        total = Counter[float]()
        for round in rounds:
            total += self.steps(client, samples, round) - self.steps(client, samples, round - 1)
        return accounting.epsilon_of(total, self.multiplier(client, samples), self.protection.delta)

    def steps(self, client: int, samples: int, rounds: int) -> Counter[float]:
        """Return the steps of a client that takes part in all rounds up to this one."""
        totals = self._steps.setdefault((client, samples), [Counter()])
        while len(totals) <= rounds:
            total = Counter(totals[-1])
            for number, phase in enumerate(self._method.phases(self._task)):
                place = (phase, number, self._task, client, len(totals), TRAIN, samples, self._stragglers)
                if phase.data == "private" and (count := batching.count_steps(draw := draw_arguments(*place))):
                    total[batching.rate(draw)] += count
            totals.append(total)
        return totals[rounds]

    def multiplier(self, client: int, samples: int) -> float:
        """Return the noise multiplier z of a client."""
        if self.protection.noise_multiplier is not None:
            return self.protection.noise_multiplier
        steps = self.steps(client, samples, self.rounds)
        key = frozenset(steps.items())
        if key not in self._multipliers:
            self._multipliers[key] = accounting.multiplier_of(steps, self.protection.epsilon, self.protection.delta)
        return self._multipliers[key]

    def batch_key(self, key: int) -> int:
        """Return a secret random key for a client's batches; the run's key is public."""
        return key if self.protection.test_seed is not None else secrets.randbits(63)

    def worst(self, rounds: int) -> tuple[Steps, float]:
        """Return the steps and the noise multiplier of the client with the largest ε."""
        every = [(self.steps(k, n, rounds), self.multiplier(k, n)) for k, n in self.sizes.items()]
        distinct = {(frozenset(steps.items()), z): (steps, z) for steps, z in every}.values()
        unknown: tuple[Steps, float] = ({}, 1.0)
        return max(
            distinct, key=lambda pair: accounting.epsilon_of(pair[0], pair[1], self.protection.delta), default=unknown
        )

    def description(self, multiplier: float) -> tuple[str, list[str]]:
        """Return the mechanism and the assumptions of the guarantee."""
        clip = f"clipping norm {self.protection.clip:g} per sample"
        return f"DP-SGD at each client, multiplier {multiplier:.4g}, {clip}", [
            "each client adds the noise to its own gradients, so the server need not be trusted with samples",
            "batches are Poisson samples that only the client knows",
            "ε is that of the client with the largest one, as if it had taken part in every round once",
            _NOT_PROTECTED,
        ]
