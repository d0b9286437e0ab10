"""Two rounds of each personalized baseline against a loop in plain PyTorch, in float64."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable

import pytest
import torch
from plain import Plain, average, values
from simulations import make_simulation
from small import CLASSES, federation, network
from tiers import quick
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.algorithm.method import Method
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.methods.ditto import Ditto
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedetf import FedETF
from fedhead.methods.fednh import FedNH
from fedhead.methods.fedproto import FedProto
from fedhead.methods.fedrep import FedRep
from fedhead.methods.fedrod import FedRoD, FedRoDHyper
from fedhead.models import build
from fedhead.models.dropout import Dropout
from fedhead.models.split_model import SplitModel

CLIENTS = (0, 1, 3, 4)  # client 2 holds nothing
ROUNDS = 2
LR, MOMENTUM = 0.05, 0.9

Pairs = Iterable[tuple[Tensor, Tensor]]


@pytest.fixture
def fed() -> Federation:
    return dataclasses.replace(federation(), transform=Transform.named("none", "half"))


@pytest.fixture
def plain(fed: Federation) -> Plain:
    return Plain(fed)


def simulate(
    fed: Federation, models: list[SplitModel], method: Method, rounds: int = ROUNDS, **settings: bool
) -> Simulation:
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(LR, MOMENTUM), **settings)
    simulation = make_simulation(fed, models, method, rounds=rounds, local=local, dtype=torch.float64)
    for number in range(1, rounds + 1):
        train_round(simulation.using(Loop()), number)
    return simulation


def fit(parameters: Iterable[nn.Parameter], batches: Pairs, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    optimizer = torch.optim.SGD(list(parameters), LR, MOMENTUM)
    for x, y in batches:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()


def equal(found: Tree, expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def own_data(fed: Federation, client: int) -> tuple[Tensor, Tensor]:
    rows = fed.indices[client]
    return fed.transform(fed.train.x[rows]).double(), fed.train.y[rows]


def counts(fed: Federation, client: int) -> Tensor:
    return torch.bincount(fed.train.y[fed.indices[client]], minlength=CLASSES).double()


def sizes(fed: Federation) -> list[float]:
    return [float(len(fed.indices[k])) for k in CLIENTS]


def test_ditto(fed: Federation, plain: Plain) -> None:
    found = simulate(fed, [network("group")], Ditto(lam=0.3))
    shared = network("group").double()
    personal = {k: copy.deepcopy(shared) for k in CLIENTS}
    for number in range(1, ROUNDS + 1):
        received, trained = values(shared), []
        for k in CLIENTS:
            model = copy.deepcopy(shared)
            fit(model.parameters(), plain.batches(k, number), lambda x, y, m=model: F.cross_entropy(m(x).logits, y))
            trained.append(model)
            own = personal[k]

            def pulled(x: Tensor, y: Tensor, own: SplitModel = own, received: dict[str, Tensor] = received) -> Tensor:
                drift = sum((p - received[n]).square().sum() for n, p in own.named_parameters())
                return F.cross_entropy(own(x).logits, y) + 0.3 / 2 * drift

            fit(own.parameters(), plain.batches(k, number, phase=1), pulled)
        shared = average(trained, sizes(fed))
    equal(found.server["model"], values(shared))
    for k in CLIENTS:
        equal(found.states[k]["personal"], values(personal[k]))


def test_dittos_global_model_is_fedavgs(fed: Federation) -> None:
    ditto, fedavg = (simulate(fed, [network("group")], m) for m in (Ditto(), FedAvg()))
    for name, value in fedavg.server["model"].items():
        assert torch.equal(ditto.server["model"][name], value)


@pytest.mark.parametrize(("head_epochs", "body_epochs"), [(3, 1), (None, None)])
def test_fedrep(fed: Federation, plain: Plain, head_epochs: int | None, body_epochs: int | None) -> None:
    method = FedRep(head_epochs=head_epochs, body_epochs=body_epochs, untrained_head=True)
    found = simulate(fed, [network("group")], method)
    shared = network("group").double()
    heads = {k: copy.deepcopy(shared.classifier) for k in CLIENTS}
    for number in range(1, ROUNDS + 1):
        trained = []
        for k in CLIENTS:
            model = copy.deepcopy(shared)
            model.classifier = heads[k]

            def loss(x: Tensor, y: Tensor, model: SplitModel = model) -> Tensor:
                return F.cross_entropy(model(x).logits, y)

            fit(model.classifier.parameters(), plain.batches(k, number, 0, epochs=head_epochs), loss)
            body = [*model.extractor.parameters(), *model.projection.parameters()]
            fit(body, plain.batches(k, number, 1, epochs=body_epochs), loss)
            trained.append(copy.deepcopy(model))
        head = shared.classifier
        shared = average(trained, sizes(fed))
        shared.classifier = head
    assert not any(name.startswith("classifier") for name in found.server["model"])
    for k in CLIENTS:
        equal(found.states[k]["own"], {f"classifier.{n}": p for n, p in values(heads[k]).items()})
    tested = method.global_model(found.server, found.task)
    assert tested is not None
    equal(tested, values(shared))  # the averaged body under the initial head
    assert FedRep().global_model(simulate(fed, [network("group")], FedRep()).server, found.task) is None


def balanced(logits: Tensor, y: Tensor, n: Tensor) -> Tensor:
    """−log n_y exp(s_y) / Σ n_c exp(s_c), written out."""
    scores = n * torch.exp(logits)
    return -torch.log(scores[torch.arange(len(y)), y] / scores.sum(1)).mean()


def weighed(fed: Federation, client: int, method: FedRoD | FedETF) -> Tensor:
    """n_c^γ, absent classes left out or counted once."""
    n = counts(fed, client)
    return (n.clamp_min(1) if method.absent == "one" else n) ** method.gamma


@pytest.mark.parametrize("method", [FedRoD(absent="mask"), FedRoD(gamma=0.5)])
@pytest.mark.parametrize("persistent", [False, True])
def test_fedrod(fed: Federation, plain: Plain, persistent: bool, method: FedRoD) -> None:
    assert (fed.counts()[list(CLIENTS)] == 0).any()
    found = simulate(fed, [network("group")], method, rounds=1 if persistent else ROUNDS, persistent=persistent)
    shared = network("group").double()
    heads = {k: nn.Linear(shared.features, CLASSES).double() for k in CLIENTS}
    for head in heads.values():
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    for number in range(1, found.task.rounds + 1):
        trained = []
        for k in CLIENTS:
            model, head, n = copy.deepcopy(shared), heads[k], weighed(fed, k, method)
            generic = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
            personal = torch.optim.SGD(head.parameters(), LR, MOMENTUM)
            for x, y in plain.batches(k, number):
                generic.zero_grad()
                personal.zero_grad()
                out = model(x)
                balanced(out.logits, y, n).backward()
                F.cross_entropy(out.logits.detach() + head(out.z.detach()), y).backward()
                generic.step()
                personal.step()
            trained.append(model)
        shared = average(trained, sizes(fed))
    equal(found.server["model"], values(shared))
    for k in CLIENTS:
        equal(found.states[k]["own"], {f"personal.{n}": p for n, p in values(heads[k]).items()})
    x, _ = own_data(fed, 0)
    job = found.jobs(found.experiment.method, found.server, found.states, [0], 1)[0]
    client = job.program.client(job.inputs(0))
    scores = found.experiment.method.predict(found.experiment.method.personal_model(client), x, client)
    out = shared(x)
    torch.testing.assert_close(scores, (out.logits + heads[0](out.z)).detach())


def test_a_hypernetwork_without_hidden_units_is_refused() -> None:
    with pytest.raises(BadInput, match="FedRoDHyper: hidden: 0 is out of range"):
        FedRoDHyper(hidden=0)
    with pytest.raises(BadInput, match="FedRoDHyper: gamma: -1 is out of range"):
        FedRoDHyper(gamma=-1)


def test_fedrods_hypernetwork(fed: Federation, plain: Plain) -> None:
    found = simulate(fed, [network("group")], FedRoDHyper(hidden=5, absent="mask"))
    first = FedRoDHyper(hidden=5).init_server(found.clients.initial[0], found.task)["model"].part("personal")
    shared = network("group").double()
    d = shared.features
    net = nn.Sequential(nn.Linear(CLASSES, 5), nn.ReLU(), nn.Linear(5, CLASSES * (d + 1))).double()
    with torch.no_grad():
        for layer, place in ((net[0], 0), (net[2], 1)):
            layer.weight.copy_(first[f"personal.{place}.weight"])
            layer.bias.copy_(first[f"personal.{place}.bias"])
    assert net[0].weight.abs().sum() > 0
    for number in range(1, ROUNDS + 1):
        trained, nets = [], []
        for k in CLIENTS:
            model, hyper, n = copy.deepcopy(shared), copy.deepcopy(net), counts(fed, k)
            optimizer = torch.optim.SGD([*model.parameters(), *hyper.parameters()], LR, MOMENTUM)
            for x, y in plain.batches(k, number):
                optimizer.zero_grad()
                out, head = model(x), hyper(n / n.sum()).reshape(CLASSES, d + 1)
                personal = out.z.detach() @ head[:, :d].T + head[:, d]
                loss = balanced(out.logits, y, n) + F.cross_entropy(out.logits.detach() + personal, y)
                loss.backward()
                optimizer.step()
            trained.append(model)
            nets.append(hyper)
        shared = average(trained, sizes(fed))
        net = average(nets, sizes(fed))  # type: ignore[arg-type, assignment]  # any module has named parameters
    equal(found.server["model"], values(shared))
    names = {"0.weight": "0.weight", "0.bias": "0.bias", "2.weight": "1.weight", "2.bias": "1.bias"}
    equal(found.server["model"], {f"personal.{names[n]}": p for n, p in values(net).items()})
    tested = found.experiment.method.global_model(found.server, found.task)
    assert tested is not None
    assert tested.keys() == dict(shared.named_parameters()).keys()


@pytest.mark.parametrize("average_over", ["clients", "samples"])
def test_fednh(fed: Federation, plain: Plain, average_over: str) -> None:
    found = simulate(fed, [network("group", "prototype")], FedNH(rho=0.8, average_over=average_over))  # type: ignore[arg-type]  # a parameter of the test
    shared = network("group", "prototype").double()
    for number in range(1, ROUNDS + 1):
        trained, means = [], torch.zeros(CLASSES, shared.features).double()
        frozen = shared.classifier.weight.detach().clone()
        for k in CLIENTS:
            model = copy.deepcopy(shared)
            learned = [p for n, p in model.named_parameters() if n != "classifier.weight"]
            fit(learned, plain.batches(k, number), lambda x, y, m=model: F.cross_entropy(m(x).logits, y))
            trained.append(model)
            x, y = own_data(fed, k)
            unit = F.normalize(model(x).z.detach(), dim=1)
            for c in y.unique():
                means[c] += len(y[y == c]) * F.normalize(unit[y == c].mean(0), dim=0)
        shared = average(trained, [1.0] * len(CLIENTS) if average_over == "clients" else sizes(fed))
        moved = F.normalize(0.8 * frozen + 0.2 * F.normalize(means, dim=1), dim=1)
        shared.classifier.weight.data.copy_(moved)
    equal(found.server["model"], values(shared))


def test_fednh_leaves_the_prototype_of_a_class_that_nobody_holds(fed: Federation) -> None:
    without = dataclasses.replace(fed, indices=[rows[fed.train.y[rows] != 1] for rows in fed.indices])
    found = simulate(without, [network("group", "prototype")], FedNH(), rounds=1)
    before, after = found.clients.initial[0]["classifier.weight"], found.server["model"]["classifier.weight"]
    torch.testing.assert_close(after[1], before[1], atol=1e-12, rtol=0)
    assert (after[0] - before[0]).abs().max() > 1e-3


@pytest.mark.parametrize("average_over", ["samples", "clients"])
def test_fedproto(fed: Federation, plain: Plain, average_over: str) -> None:
    method = FedProto(lam=0.7, average_over=average_over)  # type: ignore[arg-type]  # a parameter of the test
    found = simulate(fed, [network("group")], method)
    models = {k: network("group").double() for k in CLIENTS}
    prototypes: dict[int, Tensor] = {}
    for number in range(1, ROUNDS + 1):
        local: dict[int, list[tuple[Tensor, float]]] = {c: [] for c in range(CLASSES)}
        for k in CLIENTS:
            model = models[k]

            def loss(x: Tensor, y: Tensor, m: SplitModel = model, p: dict[int, Tensor] = prototypes) -> Tensor:
                out = m(x)
                pull = torch.zeros((), dtype=torch.float64)
                if p:
                    pull = F.mse_loss(out.z, torch.stack([p[int(c)] for c in y]))
                return F.cross_entropy(out.logits, y) + 0.7 * pull

            fit(model.parameters(), plain.batches(k, number), loss)
            x, y = own_data(fed, k)
            z = model(x).z.detach()
            for c in y.unique().tolist():
                local[c].append((z[y == c].mean(0), float((y == c).sum()) if average_over == "samples" else 1.0))
        prototypes = {c: sum(n * m for m, n in found) / sum(n for _, n in found) for c, found in local.items()}  # type: ignore[misc]  # sums of tensors
    for k in CLIENTS:
        equal(found.states[k]["own"], values(models[k]))
    expected = torch.stack([prototypes[c] for c in range(CLASSES)])
    torch.testing.assert_close(found.server["prototypes"]["mean"], expected)
    job = found.jobs(found.experiment.method, found.server, found.states, [3], 1)[0]
    client, (x, _) = job.program.client(job.inputs(0)), own_data(fed, 3)
    distance = (models[3](x).z[:, None] - expected).norm(dim=-1)
    predicted = method.predict(method.personal_model(client), x, client).argmax(1)
    assert torch.equal(predicted, distance.argmin(1))


def test_fedproto_takes_distances_before_the_dropout_behind_the_prototypes(fed: Federation) -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
    model = SplitModel(body, nn.Linear(8, CLASSES), Dropout(0.5))
    simulation = make_simulation(fed, [model], FedProto(lam=1.0), rounds=1, local=LocalTraining(), dtype=torch.float64)
    x = fed.transform(fed.train.x[:CLASSES]).double()
    with torch.no_grad():
        h = body.double()(x)
    assert (h > 0.1).any()
    # sample c is the prototype of class c
    server = Tree(prototypes=Tree(mean=h, seen=torch.ones(CLASSES, dtype=torch.float64)))
    (job,) = simulation.jobs(simulation.experiment.method, server, simulation.states, [0], 1)
    classes, weight = torch.arange(CLASSES), torch.ones(CLASSES, dtype=torch.float64)
    batch = Batch(x, classes, weight, indices=classes, key=classes)
    pulled, plain = (
        FedProto(lam=lam).loss(
            simulation.clients.initial[0], batch, job.program.client(job.inputs(0), key=torch.tensor(7))
        )
        for lam in (1.0, 0.0)
    )
    assert float(pulled - plain) == 0.0


def test_fedproto_among_differing_architectures() -> None:
    fed = federation()
    models = [
        build("mlp", (1, 6, 6), CLASSES, hidden=(12,), feature_layer=7),
        build("digitscnn", (1, 6, 6), CLASSES, feature_layer=7),
    ]
    runs = []
    for executor in (Loop(), Stack()):
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(LR))
        simulation = make_simulation(fed, models, FedProto(), rounds=2, local=local, dtype=torch.float64)
        for number in (1, 2):
            train_round(simulation.using(executor), number)
        runs.append(simulation.server["prototypes"]["mean"])
    assert runs[0].shape == (CLASSES, 7)
    torch.testing.assert_close(runs[0], runs[1], atol=1e-10, rtol=0)
    models[1] = build("digitscnn", (1, 6, 6), CLASSES)
    for assign in (None, [0, 0, 0, 0, 1]):  # whoever has it, it is model 1 that does not fit
        with pytest.raises(BadInput, match=r"^model 1: .* and model 0's have 7, .*one dimension.*feature_layer=7"):
            make_simulation(fed, models, FedProto(), rounds=1, local=LocalTraining(), assign=assign)


@pytest.mark.parametrize("method", [FedETF(gamma=0.5, absent="mask"), FedETF()])
def test_fedetf_is_fedavg_with_the_balanced_loss(fed: Federation, plain: Plain, method: FedETF) -> None:
    found = simulate(fed, [network("group", "etf")], method)
    shared = network("group", "etf").double()
    frame = shared.classifier.weight.detach().clone()
    for number in range(1, ROUNDS + 1):
        trained = []
        for k in CLIENTS:
            model, n = copy.deepcopy(shared), weighed(fed, k, method)
            learned = [p for name, p in model.named_parameters() if name != "classifier.weight"]
            fit(learned, plain.batches(k, number), lambda x, y, m=model, n=n: balanced(m(x).logits, y, n))
            trained.append(model)
        shared = average(trained, sizes(fed))
    equal(found.server["model"], values(shared))
    torch.testing.assert_close(found.server["model"]["classifier.weight"], frame)
    assert found.server["model"]["classifier.scale"] != 1  # β is trained


FAMILY = ["ditto", "fedetf", "fednh", "fedproto", "fedrep", "fedrod", "fedrod_hyper"]


@pytest.mark.parametrize("name", quick(FAMILY, "ditto", "fedrod_hyper"))
def test_lasting_momentum_is_the_same_on_both_executors(name: str, fed: Federation) -> None:
    """The order of a model's names, which momentum follows, is the same in every round and on both executors."""
    servers = []
    for executor in (Loop(), Stack()):
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(LR, MOMENTUM), persistent=True)
        model = network("batch", METHODS[name].head)
        simulation = make_simulation(fed, [model], METHODS[name](), rounds=2, local=local, dtype=torch.float64)
        for number in (1, 2):
            train_round(simulation.using(executor), number)
        servers.append(simulation.server.leaves())
    for leaf, value in servers[0].items():
        torch.testing.assert_close(servers[1][leaf], value, atol=1e-10, rtol=1e-10)
