"""Base class of stages that compute a head from the clients' class statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.calibration import low_rank, private_statistics, statistics_check
from fedhead.calibration.statistics import Statistics, merge
from fedhead.calibration.sums import Kind, batch_sums
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.closed_form_heads import bounded
from fedhead.models.split_model import SplitModel
from fedhead.privacy import noise
from fedhead.privacy.base import Protection
from fedhead.privacy.dp import DP, Deviations, Release

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation

OUTER = "second_moment"  # entry of the second moment of all classes, which has no row per class
CENTER = "center"  # entry of the mean of all features
LARGER = 1000  # features this many times larger than the clients' median would dominate the head


@dataclass(frozen=True)
class StatisticsStage(Stage):
    """Base of stages in which clients send class statistics and the server computes a head from them.

    With several architectures, each has its own statistics and head. The server's state holds the heads under
    `calibrated`, next to the trained model.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ("model", "calibrated")
    sums: ClassVar[tuple[str, ...]] = ("statistics", OUTER)
    class_rows: ClassVar[tuple[str, ...]] = ("statistics",)
    class_sums: ClassVar[tuple[str, ...]] = (OUTER,)
    reveals: ClassVar[Mapping[str, str]] = {
        "statistics": "spread of the features of each class; with count and sum, both features of a class of two",
        "statistics/count": "number of samples of each class",
        "statistics/sum": "mean feature of each class; of a class of one sample, that sample's feature",
        OUTER: "spread of the features of all classes together",
        "architecture": "architecture of the model, as a hash of its parameters' names and shapes",
        "head": "classifier trained on all samples of the client: whether a sample was among them",
    }
    protectable: ClassVar[bool] = False  # whether differential privacy is supported

    @property
    def given_name(self) -> str:
        """Name of the stage in error messages: the one that the user requested."""
        return self.name

    @property
    def may_lack_classes(self) -> bool:
        """True if a class without samples at any client is never predicted, instead of refused."""
        return True

    @property
    def kind(self) -> Kind:
        """Kind of second moments that clients send."""
        raise NotImplementedError

    def on_method(self, method: Method) -> Self:
        """Check that the method's clients share features."""
        require_shared_parts(self.name, method)
        bound = super().on_method(method)
        if bound.centered:
            object.__setattr__(bound, "broadcast", (*bound.broadcast, CENTER))
        return bound

    def protect(self, protection: Protection, releases: int) -> Self:
        """Return the stage with noise on the statistics."""
        if not self.protectable or not isinstance(protection, DP):
            return super().protect(protection, releases)
        return replace(self, release=Release(protection, releases)).on_method(self.method)

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Apply the checks of an earlier exchange too."""
        super().check(models, federation)
        width = None if self.release is None else self.release.protection.directions
        for model in models:
            if width is not None and width >= model.features:
                raise BadInput(f"privacy: directions is {width}, it must be fewer than the {model.features} features")
        for earlier in self.chain()[:-1]:
            earlier.check(models, federation)

    @property
    def centered(self) -> bool:
        """True if a mean is subtracted from the features, which an earlier exchange computes."""
        return self.release is not None and self.release.protection.center != "none"

    def prerequisite(self) -> Stage | None:
        """Return the exchange that computes the center of the features."""
        if self.release is None or not self.centered:
            return None
        return FeatureCenter(release=self.release.of_center(), method=self.method, before=self.given_name)

    def start_after_prerequisite(self, server: Tree, calibrated: Tree, task: Task) -> Tree:
        """Add the center to the state after the rounds."""
        return server.replace({CENTER: calibrated[CENTER]})

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """Start from the model of the method's next round, without parts that the method adds to it."""
        return super().start(client).part(*PARTS)

    def transformed(self, z: Tensor) -> Tensor:
        """Transform the features before their statistics are computed; the identity by default."""
        return z

    def bounded(self, z: Tensor, center: Tensor | None = None) -> Tensor:
        """Bound the norm of the features, if the stage has differential privacy."""
        if self.release is None:
            return z
        return bounded(z, self.release.protection.clip, center, self.release.protection.directions)

    def center_of(self, client: Client) -> Tensor | None:
        """Return the received center of the client's architecture; None without one."""
        number = str(architecture_number(client.task.model))
        return client.received[CENTER][number] if self.centered else None

    def collect(self, w: Weights, client: Client) -> Tree:
        """Return the sums over the client's samples, without its small classes."""
        large, center = client.counts >= client.task.min_class_count, self.center_of(client)

        def sums(batch: Batch) -> Tree:
            z, weight = self.transformed(client.apply(w, batch.x, train=False).z), batch.weight
            z = self.bounded(z, center)
            if client.task.min_class_count > 1 and not self.protected:
                weight = weight * large[batch.y]
            return batch_sums(z, batch.y, weight, client.task.classes, self.kind)

        return client.total(sums)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the class statistics of the features, as sums."""
        sums, public = self.collect(w, client), self.public(client.task)
        return Reply(_split(sums, self.kind == "pooled").replace(public.to(client.counts.device)), client.state)

    def add_noise(self, sent: Tree, client: int, task: Task) -> Tree:
        """Add the client's noise to its statistics: all of it, or its share if the server sees only totals."""
        if self.release is None:
            return sent
        source = noise.generator(self.release.protection.test_seed, self.name, client)
        noisy = private_statistics.add_noise(_joined(sent), self.deviations(task, 1), source)
        return sent.replace(_split(noisy, OUTER in sent))

    @property
    def mu(self) -> float:
        """μ of Gaussian differential privacy that one reply of each client spends; infinite without protection."""
        return math.inf if self.release is None else self._part(self.release).exchange_mu

    def _part(self, release: Release) -> Release:
        return release.without_center() if self.centered else release

    def deviations(self, task: Task, clients: int) -> Deviations:
        """Return the deviations of the noise on the sum of several replies."""
        assert self.release is not None, "called only with differential privacy"
        width = self.release.protection.directions or task.model.features
        single = self._part(self.release).deviations(width, self.kind != "means")
        return single.scaled(math.sqrt(clients / task.noise_shares))  # each adds an equal part of the variance

    # -- server -----------------------------------------------------------------------------------
    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Check that the statistics are possible for the client's samples and architecture."""
        if not self.protected:  # noisy statistics may be those of no features
            statistics_check.check(self.received(sent), "its statistics", samples=samples)
        if int(sent["architecture"]) != architecture_number(task.model):
            raise BadInput("its statistics are those of another architecture")

    def public(self, task: Task) -> Tree:
        """Return the number of the architecture."""
        return Tree(architecture=torch.tensor(architecture_number(task.model)))

    def add(self, total: Tree, sent: Tree) -> Tree:
        """Add a client's sums to those of its architecture, in the same order as `merge`."""
        group, sums = str(int(sent["architecture"])), Tree({name: sent[name] for name in self.sums if name in sent})
        if group not in total:
            return total.replace({group: sums.clone()})
        total[group].map(Tensor.add_, sums)
        return total

    def summary_for_comparison(self, sent: Tree) -> Tree:
        """Return the typical size of the client's features, to find outliers."""
        size = 0.0 if self.protected else statistics_check.feature_size(self.received(sent))
        return Tree(architecture=sent["architecture"], size=torch.tensor(size, dtype=torch.float64))

    def find_inconsistent_replies(self, digests: Mapping[int, Tree]) -> dict[int, str]:
        """Find clients whose features are far larger than those of other clients of the architecture."""
        sizes: dict[int, dict[int, float]] = {}
        for k, digest in digests.items():
            sizes.setdefault(int(digest["architecture"]), {})[k] = float(digest["size"])
        reasons = {}
        for group in sizes.values():
            limit = LARGER * median([size for size in group.values() if size] or [0.0])
            for k, size in group.items():
                if 0 < limit < size:
                    reasons[k] = f"its features have a size of {size:.3g}, more than {LARGER} times the clients' median"
        return reasons

    def received(self, sent: Tree) -> Statistics:
        """Return the statistics in a client's reply."""
        return low_rank.from_tree(_joined(sent))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the head of each architecture from the statistics of its clients."""
        heads = {name: self.new_head(server, group, task) for name, group in by_architecture(replies).items()}
        if self.centered:
            heads = {name: head.replace({"classifier.center": server[CENTER][name]}) for name, head in heads.items()}
        return server.replace(calibrated=Tree(heads))

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Return the head for clients of one architecture, as classifier entries with full names."""
        raise NotImplementedError

    def merge(self, replies: Replies, task: Task) -> Statistics:
        """Validate and merge the statistics of all clients.

        Args:
            replies: Replies of the clients of one architecture, or their total.
            task: Sizes and settings.
        """
        if self.protected:
            parts = replies.sent if replies.total is None else [replies.total]
            total = merge(self.received(sent) for sent in parts)
            return private_statistics.denoise(total, self.deviations(task, len(replies)), self.may_lack_classes)
        if replies.total is not None:  # each reply was checked before it was added
            return statistics_check.check(self.received(replies.total), "the merged statistics")
        sources = [f"statistics of client {k}" for k in replies.clients]
        return statistics_check.merge_checked(sources, lambda i: self.received(replies.sent[i]))

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the trained extractor with the new head, or None if clients don't share the extractor."""
        extractor = [part for part in PARTS if part != "classifier"]
        if "calibrated" not in server or not set(extractor) <= set(self.method.shared):
            return None
        return self.under(server["model"].part(*PARTS), server["calibrated"], task)

    def personal_model(self, client: Client) -> Weights:
        """Return the client's extractor with the new head."""
        return self.under(self.start(client), client.received["calibrated"], client.task)

    def under(self, w: Weights, heads: Tree, task: Task) -> Weights:
        """Return a model with the new head of its architecture."""
        return w.replace(heads[str(architecture_number(task.model))])


@dataclass(frozen=True)
class FeatureCenter(StatisticsStage):
    """Mean of bounded features, over the clients' samples with noise or over public samples."""

    name: ClassVar[str] = CENTER
    kind: ClassVar[Kind] = "means"
    may_lack_classes: ClassVar[bool] = False  # all samples are one class
    centered: ClassVar[bool] = False  # this exchange computes the center
    adds_up: ClassVar[bool] = True
    before: str = field(default="", repr=False, kw_only=True)  # stage that uses the center

    @property
    def _public(self) -> bool:
        return self.release is not None and self.release.protection.center == "public"

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that there are public samples, if they are needed."""
        super().check(models, federation)
        if self._public and federation.public is None:
            raise BadInput("privacy: center=public needs public samples: set public=…, or use center=private")

    def collect(self, w: Weights, client: Client) -> Tree:
        """Return the count and the sum of all samples, as one class."""
        if self._public:
            z = client.on_public(lambda x: self.bounded(client.apply(w, x, train=False).z))
            return Tree(count=z.new_full((1,), len(z)), sum=z.sum(0, keepdim=True))

        def sums(batch: Batch) -> Tree:
            z = self.bounded(client.apply(w, batch.x, train=False).z)
            return batch_sums(z, torch.zeros_like(batch.y), batch.weight, 1, "means")

        return client.total(sums)

    @property
    def mu(self) -> float:
        """μ of this exchange; 0 for public samples."""
        return 0.0 if self._public else super().mu

    def deviations(self, task: Task, clients: int) -> Deviations:
        """Return the deviations of the noise, which sums over public samples don't need."""
        return super().deviations(task, clients).scaled(0.0 if self._public else 1.0)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the center of each architecture."""
        groups = by_architecture(replies).items()
        return server.replace({CENTER: Tree({name: self.merge(group, task).center() for name, group in groups})})


def _split(sums: Tree, pooled: bool) -> Tree:
    """Return the entries of a reply; pooled second moments are an entry of their own, as they have no class rows."""
    return Tree({"statistics": sums.without("outer"), OUTER: sums["outer"]}) if pooled else Tree(statistics=sums)


def _joined(sent: Tree) -> Tree:
    """Return the sums in a reply, the inverse of `_split`."""
    sums: Tree = sent["statistics"]
    return sums.replace(outer=sent[OUTER]) if OUTER in sent else sums


def require_shared_parts(name: str, method: Method) -> None:
    """Raise `BadInput` if a stage follows a method whose clients share no features."""
    if not set(method.shared) & {"extractor", "classifier"}:
        raise BadInput(
            f"{name} can't follow {method.name}: its clients share neither extractor nor classifier, "
            f"so the features of one mean nothing to another"
        )


def by_architecture(replies: Replies) -> dict[str, Replies]:
    """Group the replies, or their totals, by architecture number."""
    if replies.total is not None:
        return {group: replace(replies, total=sums) for group, sums in replies.total.items()}
    groups: dict[str, list[int]] = {}
    for position, reply in enumerate(replies.sent):
        groups.setdefault(str(int(reply["architecture"])), []).append(position)
    return {group: _select(replies, positions) for group, positions in groups.items()}


def _select(replies: Replies, positions: Sequence[int]) -> Replies:
    """Return the replies at these positions."""
    clients, samples = [replies.clients[i] for i in positions], [replies.samples[i] for i in positions]
    return Replies(clients, samples, [replies.sent[i] for i in positions])


def architecture_number(model: SplitModel) -> int:
    """Return a number that identifies an architecture by its parameters' names and shapes."""
    return random.key(*(f"{name} {tuple(p.shape)}" for name, p in model.named_parameters()))


def with_classifier(model: SplitModel, classifier: nn.Module) -> SplitModel:
    """Return a model with another classifier that shares all other parts."""
    new = SplitModel(model.extractor, classifier, model.projection)
    new.origin, new.kept_width = model.origin, model.kept_width
    return new
