"""Personalization after the rounds: one more local update for any method, and FedETF's Algorithm 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.stage import Stage, stage
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import Above, AtLeast, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.stages.ccvr import CCVR

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel

V, BETA = "classifier.weight", "classifier.scale"  # the ETF's vectors and the temperature, as the model names them
TUNED = "tuned"  # where the client's state keeps its own model


@stage("finetune")
@dataclass(frozen=True)
class FineTune(Stage):
    """Every client trains once more as the method has it, from the final model, and keeps the result for itself.

    This is the one rule by which FedETF's experiments measure personal accuracy for all methods; the global model
    stays as it is. Clients that never took part are tuned too.

    The learning rate is that of the round after the one whose models are tuned: the last, the one where a callback
    stopped the run, or the one that was kept. The run's decay counts, of which 0.99 a round leaves 13 % after 200
    rounds; `full_lr` begins again with the rate of the first round.
    """

    full_lr: bool = dataclasses.field(default=False, kw_only=True)  # the run's first learning rate, without its decay

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Refuse a federation in which no client can be tested."""
        super().check(models, federation)
        if federation.client_test is None or not any(len(rows) for rows in federation.client_test):
            raise BadInput(
                f"stage {self.name} measures the clients on their own test sets, and no client has one: "
                f"set client_test=0.3 to keep 30 % of each client's samples for it"
            )

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The method's own."""
        return self.tuned(self.method.phases(task))

    def tuned(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Phases at the learning rate of the stage."""
        return tuple(dataclasses.replace(phase, scheduled=phase.scheduled and not self.full_lr) for phase in phases)

    def correct(self, g: Tree, client: Client) -> Tree:
        """The method's own."""
        return self.method.correct(g, client)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send nothing, keep the tuned model."""
        return Reply(send=Tree(), keep=client.state.replace({TUNED: self.method.tuned_model(w, client)}))

    def personal_model(self, client: Client) -> Weights:
        """The tuned model."""
        return client.state[TUNED]  # type: ignore[no-any-return]  # a tree's entries are untyped


@stage("finetune_ccvr")
@dataclass(frozen=True)
class FineTuneCCVR(FineTune):
    """CCVR, and then one more local update of every client from the calibrated model.

    This is the personal accuracy of CCVR in FedETF's tables; the defaults are what those experiments calibrate with.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    samples: Annotated[int, AtLeast(1)] = 10  # virtual features per class
    epochs: Annotated[int, AtLeast(0)] = 100  # of training the classifier on them
    lr: Annotated[float, Above(0)] = 0.01  # learning rate of SGD
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.0  # plain SGD, unlike CCVR's own experiments
    weight_decay: Annotated[float, AtLeast(0)] = 0.0  # L2 penalty of SGD
    batch_size: Annotated[int, AtLeast(1)] = 128  # virtual features per step
    covariance: Literal["full", "diagonal"] = "diagonal"  # what clients send of Σ_c

    def on_method(self, method: Method) -> Self:
        """Refuse what CCVR can't follow, and methods without a global model to go on from."""
        bound = super().on_method(method)
        CCVR().on_method(method)
        if not set(PARTS) <= set(method.shared):
            raise BadInput(f"finetune_ccvr can't follow {method.name}, which has no global model; use finetune")
        return bound

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Refuse what CCVR refuses."""
        super().check(models, federation)
        self.prerequisite().check(models, federation)

    def prerequisite(self) -> Stage:
        """The calibration."""
        return CCVR(
            samples=self.samples,
            epochs=self.epochs,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            covariance=self.covariance,
            method=self.method,
        )


@stage("finetune_etf")
@dataclass(frozen=True)
class FineTuneETF(FineTune):
    """FedETF's personalized fine-tuning (Algorithm 2): the extractor, then in turns ETF and projection.

    Accuracy is recorded after each step (Fig. 6b). In `variant="paper"` each step trains for `epochs` by plain cross
    entropy (Eq. 9-11) with the run's optimizer, β throughout, and the running statistics of a fixed extractor stay as
    they are. `variant="code"` is what the public code does: the first step is an ordinary local round, V is trained by
    plain SGD at 0.1 and p at 0.05 (without the run's decay) for 3 epochs each, and β is left. BatchNorm stays in
    training mode, so that running statistics go on adapting to the client.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    head: ClassVar[str | None] = "etf"
    iterations: Annotated[int, AtLeast(0)] = 20  # T_p; the paper gives none, this is the public code's
    # E of each step, None: the run's local epochs (3 for variant code)
    epochs: Annotated[int, AtLeast(1)] | None = None
    variant: Literal["paper", "code"] = "paper"  # the algorithm of the paper, or of its public code
    record: bool = True  # whether the accuracy after each step is measured
    at: str | None = dataclasses.field(default=None, repr=False)  # the step whose model is returned; None: the last

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """ŵ = {u, β}, then T_p times ŵ = {V, β} and ŵ = {p, β}; each saves what it trained."""
        if self.variant == "code":
            wd, epochs = getattr(task.local.optimizer, "weight_decay", 0.0), self.epochs or 3
            first = [dataclasses.replace(phase, saves="extractor") for phase in self.method.phases(task)]
            frame = Phase(self.loss, (V,), epochs, SGD(0.1), corrects=False, scheduled=False)
            layer = Phase(self.loss, ("projection",), epochs, SGD(0.05, 0.9, wd), corrects=False, scheduled=False)
        else:
            first = [Phase(self.extractor_loss, ("extractor", BETA), self.epochs, saves="extractor", corrects=False)]
            frame = Phase(self.loss, (V, BETA), self.epochs, corrects=False)
            frame, layer = self.tuned((frame, Phase(self.loss, ("projection", BETA), self.epochs, corrects=False)))
        turns = [
            dataclasses.replace(phase, saves=f"{name} {t}")
            for t in range(1, self.iterations + 1)
            for name, phase in (("classifier", frame), ("projection", layer))
        ]
        return (*self.tuned(first), *turns)

    def extractor_loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Cross entropy without balance (Eq. 9) while the extractor is trained."""
        return client.loss(client.apply(w, batch.x).logits, batch)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Cross entropy without balance (Eq. 9) on top of a fixed extractor."""
        return client.loss(client.apply(w, batch.x, train=self.variant == "code").logits, batch)

    def steps(self) -> dict[str, Stage]:
        """Before, after the extractor, and after each turn."""
        turns = [f"{name} {t}" for t in range(1, self.iterations + 1) for name in ("classifier", "projection")]
        names = ["global", "extractor", *turns] if self.record else []
        return {name: dataclasses.replace(self, at=name).on_method(self.method) for name in names}

    def personal_model(self, client: Client) -> Weights:
        """The model at the end, or as it was after the step `at`."""
        end = super().personal_model(client)
        if self.at is None:
            return end
        w = self.method.start(client)
        if self.at == "global":
            return w
        w = end.replace(w.part("projection", "classifier"))  # the extractor is trained in the first step alone
        for name in self.steps():
            if name in client.state:
                w = w.replace(client.state[name])
            if name == self.at:
                break
        return w
