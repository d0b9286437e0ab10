"""Personalization after the rounds: fine-tuning for any method, and FedETF's Algorithm 2."""

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
from fedhead.privacy.base import Protection
from fedhead.stages.ccvr import CCVR

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel

V, BETA = "classifier.weight", "classifier.scale"  # parameter names of the ETF's vectors and the temperature
TUNED = "tuned"  # entry of the client's state that holds its tuned model


@stage("finetune")
@dataclass(frozen=True)
class FineTune(Stage):
    """Fine-tuning: every client trains once more with the method's own objective and gets a personal model.

    FedETF's experiments measure the personal accuracy of all methods this way. The global model does not change.
    Clients that never took part in a round are tuned too.

    Tuning starts from the model of the last round, of the round in which a callback stopped the run, or of the
    selected round, and uses the learning rate of the round after it. Decay and schedule of the run apply: a decay of
    0.99 per round leaves 13 % after 200 rounds, and `cosine` almost nothing after the last round. `full_lr` uses the
    optimizer's learning rate without decay and schedule.
    """

    full_lr: bool = dataclasses.field(default=False, kw_only=True)  # learning rate without decay and schedule

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that at least one client has test samples."""
        super().check(models, federation)
        if federation.client_test is None or not any(len(rows) for rows in federation.client_test):
            raise BadInput(
                f"stage {self.name} measures the clients on their own test sets, and no client has one: "
                f"set client_test=0.3 to keep 30 % of each client's samples for it"
            )

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Return the method's phases."""
        return self.tuned(self.method.phases(task))

    def tuned(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Return the phases with the stage's learning rate."""
        return tuple(dataclasses.replace(phase, scheduled=phase.scheduled and not self.full_lr) for phase in phases)

    def correct(self, g: Tree, client: Client) -> Tree:
        """Correct gradients as the method does."""
        return self.method.correct(g, client)

    def protect(self, protection: Protection, releases: int) -> Self:
        """Return the stage unchanged, unless statistics are sent before it."""
        return self if self.prerequisite() is None else super().protect(protection, releases)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send nothing and keep the tuned model."""
        return Reply(send=Tree(), keep=client.state.replace({TUNED: self.method.tuned_model(w, client)}))

    def personal_model(self, client: Client) -> Weights:
        """Return the tuned model."""
        return client.state[TUNED]  # type: ignore[no-any-return]  # a tree's entries are untyped


@stage("finetune_ccvr")
@dataclass(frozen=True)
class FineTuneCCVR(FineTune):
    """CCVR, followed by one more local update of every client from the calibrated model.

    This gives the personal accuracy of CCVR in FedETF's paper tables. The defaults are those of its experiments.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    samples: Annotated[int, AtLeast(1)] = 10  # number of virtual features per class
    epochs: Annotated[int, AtLeast(0)] = 100  # epochs of training the classifier
    lr: Annotated[float, Above(0)] = 0.01  # learning rate of SGD
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.0  # momentum of SGD; CCVR's experiments use 0.9
    weight_decay: Annotated[float, AtLeast(0)] = 0.0  # L2 penalty of SGD
    batch_size: Annotated[int, AtLeast(1)] = 128  # virtual features per step
    covariance: Literal["full", "diagonal"] = "diagonal"  # form in which clients send Σ_c

    def on_method(self, method: Method) -> Self:
        """Check that CCVR can follow the method and that the method has a global model."""
        bound = super().on_method(method)
        CCVR().on_method(method)
        if not set(PARTS) <= set(method.shared):
            raise BadInput(f"finetune_ccvr can't follow {method.name}, which has no global model; use finetune")
        return bound

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Apply the checks of CCVR too."""
        super().check(models, federation)
        self.prerequisite().check(models, federation)

    def prerequisite(self) -> Stage:
        """Return the CCVR stage, which calibrates the model first."""
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
    """FedETF's personalized fine-tuning (Algorithm 2): the extractor first, then ETF and projection alternately.

    Accuracy is recorded after each step (Fig. 6b). With `variant="paper"`, each step trains for `epochs` with plain
    cross entropy (Eq. 9-11) and the run's optimizer. Every step trains β. Running statistics change only while the
    extractor is trained. With `variant="code"`, as in the public code, the first step is an ordinary local round, V is
    trained by plain SGD with learning rate 0.1 and p with 0.05 (without decay) for 3 epochs each, and β is fixed.
    BatchNorm stays in training mode, so running statistics keep adapting to the client.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    head: ClassVar[str | None] = "etf"
    iterations: Annotated[int, AtLeast(0)] = 20  # T_p, number of iterations; default of the public code
    # E, epochs of each step; None: the run's local epochs (3 with variant=code)
    epochs: Annotated[int, AtLeast(1)] | None = None
    variant: Literal["paper", "code"] = "paper"  # algorithm of the paper, or of its public code
    record: bool = True  # record the accuracy after each step
    at: str | None = dataclasses.field(default=None, repr=False)  # step whose model is returned; None: the last

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train ŵ = {u, β}, then T_p times ŵ = {V, β} and ŵ = {p, β}; each phase saves its trained parameters."""
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
        """Return the unbalanced cross entropy (Eq. 9), with the extractor in training mode."""
        return client.loss(client.apply(w, batch.x).logits, batch)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return the unbalanced cross entropy (Eq. 9) on a fixed extractor."""
        return client.loss(client.apply(w, batch.x, train=self.variant == "code").logits, batch)

    def steps(self) -> dict[str, Stage]:
        """Return the states before tuning, after tuning the extractor, and after each later step."""
        turns = [f"{name} {t}" for t in range(1, self.iterations + 1) for name in ("classifier", "projection")]
        names = ["global", "extractor", *turns] if self.record else []
        return {name: dataclasses.replace(self, at=name).on_method(self.method) for name in names}

    def personal_model(self, client: Client) -> Weights:
        """Return the final model, or the model after the step `at`."""
        end = super().personal_model(client)
        if self.at is None:
            return end
        w = self.method.start(client)
        if self.at == "global":
            return w
        w = end.replace(w.part("projection", "classifier"))  # only the first step trains the extractor
        for name in self.steps():
            if name in client.state:
                w = w.replace(client.state[name])
            if name == self.at:
                break
        return w
