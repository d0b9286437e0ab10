"""Each fault that is planted here is found by the check of its kind, in words that say what to fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedhead as fh
from fedhead.testing import CheckFailed, check_method, check_model, check_stage


@dataclass(frozen=True)
class CountsPadding(fh.Method):
    def loss(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        return F.cross_entropy(client.apply(w, batch.x).logits, batch.y)


@dataclass(frozen=True)
class CallsItem(fh.Method):
    def loss(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        return super().loss(w, batch, client) * (1.0 if client.samples.item() > 4 else 2.0)


@dataclass(frozen=True)
class Branches(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        reply = super().finish(w, client)
        if client.samples > 4:
            return reply
        return reply._replace(send=reply.send * 0.5)


@dataclass(frozen=True)
class KeepsOnSelf(fh.Method):
    seen: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        self.seen["last"] = w
        return super().finish(w, client)


@dataclass(frozen=True)
class DrawsGlobally(fh.Method):
    def loss(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        return super().loss(w, batch, client) + 0 * torch.rand(())


class Shaken:
    """A generator of the file's own, which no global state shows."""

    generator = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class DrawsFromItsOwn(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        reply = super().finish(w, client)
        return reply._replace(send=reply.send * (1 + torch.rand((), generator=Shaken.generator)))


@dataclass(frozen=True)
class MutatesReceived(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        client.received["model"]["classifier.bias"].mul_(0.5)
        return super().finish(w, client)


@dataclass(frozen=True)
class MutatesReplies(fh.Method):
    def aggregate(self, server: fh.Tree, replies: fh.Replies, task: fh.Task) -> fh.Tree:
        replies.sent[0]["model"]["extra"] = torch.zeros(())
        return server


@dataclass(frozen=True)
class SendsNumber(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        reply = super().finish(w, client)
        return reply._replace(send=reply.send.replace(steps=3.0))


@dataclass(frozen=True)
class SendsDict(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        return fh.Reply(send={"model": w}, keep=fh.Tree())  # type: ignore[arg-type]  # the fault


@dataclass(frozen=True)
class ChangesSchema(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        reply = super().finish(w, client)
        late = {"late": client.samples} if int(client.round) > 1 else {}
        return reply._replace(send=reply.send.replace(late))


@dataclass(frozen=True)
class KeepsAnother(fh.Method):
    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        return super().finish(w, client)._replace(keep=fh.Tree(last=w))


class NotFrozen(fh.Method):
    mu: float = 0.1


class MisspellsHook(fh.Method):
    def los(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        return torch.zeros(())


@dataclass(frozen=True)
class IgnoresItsRange(fh.Method):
    mu: Annotated[float, fh.AtLeast(0)] = 0.1

    def __post_init__(self) -> None: ...


@dataclass(frozen=True)
class WrongHook(fh.Method):
    def loss(self, w: fh.Weights, batch: fh.Batch) -> Tensor:  # type: ignore[override]  # the fault
        return torch.zeros(())


FAULTS = {
    CountsPadding: r"^CountsPadding\.loss: its value changes with the padding .*: use batch\.weight, .* per sample;",
    CallsItem: r"^CallsItem: .*CallsItem\.loss \(test_planted_faults\.py, line \d+\) .*item.*at once.*torch\.where$",
    Branches: r"^Branches: .*Branches\.finish \(test_planted_faults\.py, line \d+\) .*an if.*at once.*torch\.where$",
    KeepsOnSelf: r"^KeepsOnSelf changes KeepsOnSelf\.seen, but a component keeps nothing .* client's state",
    DrawsGlobally: r"^DrawsGlobally draws from torch's global generator, .*draw by key",
    DrawsFromItsOwn: r"^DrawsFromItsOwn: the same round of the same client sends something else each time",
    MutatesReceived: r"^MutatesReceived writes into client\.received\['model'\]\['classifier\.bias'\], ",
    MutatesReplies: r"^MutatesReplies\.aggregate writes into replies\.sent\[0\]\['model'\]\['extra'\], .* compute",
    SendsNumber: r"^SendsNumber\.finish returned a float under 'steps': a tree holds tensors",
    SendsDict: r"^SendsDict\.finish returned Reply\(send=dict, keep=Tree\): return fh\.Reply",
    ChangesSchema: r"^ChangesSchema\.finish does not send for client \d, round 2 what it sent for client \d, .*'late'",
    KeepsAnother: r"^KeepsAnother\.finish does not keep what init_client made \(.*'last/.*\): ",
    NotFrozen: r"^NotFrozen: NotFrozen has the field 'mu': put @dataclass\(frozen=True\) above it$",
    MisspellsHook: r"^MisspellsHook: MisspellsHook\.los is no hook of fedhead\.Method: did you mean 'loss'\?",
    IgnoresItsRange: r"^IgnoresItsRange\.__post_init__ leaves .* unchecked: call super\(\)\.__post_init__\(\) first",
    WrongHook: r"^WrongHook: WrongHook\.loss takes \(self, w, batch\), it is called with \(self, w, batch, client\)$",
}


@pytest.mark.slow
@pytest.mark.parametrize("method", FAULTS, ids=lambda cls: cls.__name__)
def test_methods(method: type[fh.Method]) -> None:
    with pytest.raises(CheckFailed, match=FAULTS[method]):
        check_method(method, skip=["over_flower"])


@dataclass(frozen=True)
class KnowsTheOthers(fh.Method):
    """Method that uses the other clients, which a real site does not know."""

    def finish(self, w: fh.Weights, client: fh.Client) -> fh.Reply:
        reply = super().finish(w, client)
        return reply._replace(send=reply.send.replace(share=client.samples / sum(client.task.sizes)))


@pytest.mark.slow
def test_a_method_that_only_simulations_can_run() -> None:
    pytest.importorskip("flwr")
    with pytest.raises(CheckFailed, match=r"^KnowsTheOthers runs in a simulation and fails over Flower.*task\.sizes"):
        check_method(KnowsTheOthers)


@dataclass(frozen=True)
class NoSum(fh.Method):
    sums: ClassVar[tuple[str, ...]] = ("model",)


@dataclass(frozen=True)
class UnsentSum(fh.Method):
    sums: ClassVar[tuple[str, ...]] = ("counts",)


@pytest.mark.slow
def test_sums_that_are_none() -> None:
    with pytest.raises(CheckFailed, match=r"^NoSum\.aggregate looks at single clients' entries of model, declared as"):
        check_method(NoSum, skip=["over_flower"])
    with pytest.raises(CheckFailed, match=r"^UnsentSum\.sums names 'counts', which finish does not send; it sends"):
        check_method(UnsentSum, skip=["over_flower"])


def test_options_out_of_their_range_are_found_whatever_made_them() -> None:
    with pytest.raises(CheckFailed, match=r"^IgnoresItsRange: mu: -2 is out of range, it must be at least 0$"):
        check_method(IgnoresItsRange(mu=-2), skip=["over_flower"])


def test_something_else_is_no_method() -> None:
    with pytest.raises(CheckFailed, match=r"^dict is no method: let dict inherit from fedhead\.Method$"):
        check_method(dict)  # type: ignore[arg-type]  # the fault
    with pytest.raises(CheckFailed, match=r"^'fedprox' is a name: give a subclass of fedhead\.Method$"):
        check_method("fedprox")  # type: ignore[arg-type]  # the fault


@dataclass(frozen=True)
class ChangesTheRun(fh.Stage):
    def aggregate(self, server: fh.Tree, replies: fh.Replies, task: fh.Task) -> fh.Tree:
        server["model"]["classifier.bias"].zero_()
        return server


@dataclass(frozen=True)
class StageCountsPadding(fh.Stage):
    def phases(self, task: fh.Task) -> tuple[fh.Phase, ...]:
        return (fh.Phase(self.fit),)

    def fit(self, w: fh.Weights, batch: fh.Batch, client: fh.Client) -> Tensor:
        return F.cross_entropy(client.apply(w, batch.x).logits, batch.y)


STAGES = {
    ChangesTheRun: r"^ChangesTheRun\.aggregate writes into server\['model'\]\['classifier\.bias'\], ",
    StageCountsPadding: r"^StageCountsPadding\.fit: its value changes with the padding rows",
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda cls: cls.__name__)
def test_stages(stage: type[fh.Stage]) -> None:
    with pytest.raises(CheckFailed, match=STAGES[stage]):
        check_stage(stage, skip=["over_flower"])


class TwoLayers(nn.Module):
    """The classifier is not applied last where the inputs are not all zero, which can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(36, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.last(torch.relu(self.first(x.flatten(1))))
        if bool((x.detach() != 0).any()):
            hidden = hidden * 2
        return hidden  # type: ignore[no-any-return]  # torch leaves calls untyped


class MixesSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(36, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        return self.last(hidden - hidden.mean(0))  # type: ignore[no-any-return]  # torch leaves calls untyped


def not_last(input_shape: tuple[int, ...], classes: int) -> fh.SplitModel:
    return fh.split(TwoLayers(), classifier="last")


def not_last_traced(input_shape: tuple[int, ...], classes: int) -> fh.SplitModel:
    return fh.split(nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 3)), classifier="1")


def mixing(input_shape: tuple[int, ...], classes: int) -> fh.SplitModel:
    return fh.split(MixesSamples(), classifier="last")


def unsplit(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return MixesSamples()


def random_start(input_shape: tuple[int, ...]) -> fh.FeatureExtractor:
    """Draws from a generator of its own, which no seed reaches."""
    layer = nn.Linear(36, 8)
    nn.init.normal_(layer.weight, generator=Shaken.generator)
    return fh.FeatureExtractor(nn.Sequential(nn.Flatten(), layer), 8)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            not_last,
            r"^not_last can't be used: classifier: the module does not apply it last, or not exactly once; name the",
        ),
        (not_last_traced, r"^not_last_traced: classifier '1' is not the last layer applied in Sequential: name the"),
        (mixing, r"^mixing: in evaluation mode a sample's logits depend on the others of its batch: "),
        (
            unsplit,
            r"^unsplit: model 'unsplit' made MixesSamples: return fedhead\.FeatureExtractor\(extractor, width\), or",
        ),
        (MixesSamples(), r"^MixesSamples has no named parts: use fh\.split\(model, classifier="),
        (MixesSamples, r"^MixesSamples is the class MixesSamples, no model: name a function \(input_shape\) that"),
        (lambda shape, width: None, r"^lambda takes \(shape, width\), a model is called with \(input_shape\): give 'w"),
        (random_start, r"^random_start: built twice from one seed, its initial weights differ"),
    ],
)
def test_models(model: Any, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        check_model(model)
