"""One to three rounds of each method against an independent plain-PyTorch loop, in float64."""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction

import pytest
import torch
from plain import Plain, average, values
from simulations import make_simulation
from small import federation, network
from torch import Tensor, nn

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD, Adam
from fedhead.core.tree.tree import Tree, Weights
from fedhead.data.federation.federation import Federation
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods.clsprox import ClsProx
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedavgm import FedAvgM
from fedhead.methods.feddyn import FedDyn
from fedhead.methods.fedprox import FedProx
from fedhead.methods.local_only import LocalOnly
from fedhead.methods.moon import Moon
from fedhead.methods.scaffold import Scaffold, effective_steps
from fedhead.models.split_model import SplitModel

CLIENTS = (0, 1, 3, 4)  # client 2 holds nothing
ROUNDS = 3


@pytest.fixture
def fed() -> Federation:
    return dataclasses.replace(federation(), transform=Transform.named("none", "half"))


@pytest.fixture(params=["group", "batch"])
def model(request: pytest.FixtureRequest) -> SplitModel:
    return network(request.param).double()


@pytest.fixture
def plain(fed: Federation) -> Plain:
    return Plain(fed)


def simulate(
    fed: Federation, model: SplitModel, method: Method, rounds: int = ROUNDS, momentum: float = 0.0
) -> Simulation:
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.05, momentum))
    simulation = make_simulation(fed, [model], method, rounds=rounds, local=local, dtype=torch.float64)
    for number in range(1, rounds + 1):
        train_round(simulation, number)
    return simulation


def statistics(model: SplitModel) -> dict[str, Tensor]:
    """BatchNorm's running statistics by name."""
    return dict(model.named_buffers())


def equal(found: Tree, expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-11, rtol=1e-10)


def sizes(fed: Federation) -> list[float]:
    return [float(len(fed.indices[k])) for k in CLIENTS]


def test_local(fed: Federation, model: SplitModel, plain: Plain) -> None:
    found = simulate(fed, model, LocalOnly())
    mine = model
    for number in range(1, ROUNDS + 1):
        mine, _ = plain.train(mine, 3, number)
    equal(found.states[3]["own"], values(mine) | statistics(mine))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg(fed: Federation, model: SplitModel, plain: Plain, momentum: float) -> None:
    plain.momentum = momentum
    found = simulate(fed, model, FedAvg(), momentum=momentum)
    for number in range(1, ROUNDS + 1):
        model = average([plain.train(model, k, number)[0] for k in CLIENTS], sizes(fed))
    equal(found.server["model"], values(model) | statistics(model))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "part"), [(FedProx(mu=0.3), ""), (ClsProx(mu=0.3), "classifier")])
def test_proximal_terms(fed: Federation, model: SplitModel, plain: Plain, method: Method, part: str) -> None:
    found = simulate(fed, model, method)
    for number in range(1, ROUNDS + 1):
        start = values(model)

        def proximal(m: SplitModel, x: Tensor, y: Tensor, start: dict[str, Tensor] = start) -> Tensor:
            drift = [((p - start[n]) ** 2).sum() for n, p in m.named_parameters() if n.startswith(part)]
            return 0.3 / 2 * torch.stack(drift).sum()

        model = average([plain.train(model, k, number, proximal)[0] for k in CLIENTS], sizes(fed))
    equal(found.server["model"], values(model) | statistics(model))


@pytest.mark.slow
@pytest.mark.parametrize("damped", [True, False])
def test_fedavgm(fed: Federation, model: SplitModel, plain: Plain, damped: bool) -> None:
    found = simulate(fed, model, FedAvgM(beta=0.7, damped=damped))
    velocity = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for number in range(1, ROUNDS + 1):
        mean = average([plain.train(model, k, number)[0] for k in CLIENTS], sizes(fed))
        with torch.no_grad():
            new = dict(mean.named_parameters())
            for name, p in model.named_parameters():
                velocity[name] = 0.7 * velocity[name] + (0.3 if damped else 1.0) * (p - new[name])
                p -= velocity[name]
    equal(found.server["model"], values(model))


def test_scaffold(fed: Federation, model: SplitModel, plain: Plain) -> None:
    found = simulate(fed, model, Scaffold(server_lr=0.8))
    zero = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    c, ci = dict(zero), {k: dict(zero) for k in CLIENTS}
    for number in range(1, ROUNDS + 1):
        x, trained, change = values(model), [], dict(zero)
        for k in CLIENTS:

            def edit(m: SplitModel, k: int = k, c: dict[str, Tensor] = c) -> None:
                for name, p in m.named_parameters():
                    assert p.grad is not None
                    p.grad += c[name] - ci[k][name]

            y, steps = plain.train(model, k, number, edit_gradients=edit)
            trained.append(y)
            for name, value in values(y).items():
                new = ci[k][name] - c[name] + (x[name] - value) / (steps * plain.lr)
                change[name] = change[name] + new - ci[k][name]
                ci[k][name] = new
        mean = values(average(trained, [1.0] * len(CLIENTS)))  # 1/|S| for everyone (Algorithm 1, line 16)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(x[name] + 0.8 * (mean[name] - x[name]))
        c = {name: c[name] + change[name] / len(fed) for name in c}
    equal(found.server["model"], values(model))
    equal(found.server["control"], c)
    equal(found.states[4]["control"], ci[4])


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_scaffold_under_momentum_divides_by_how_far_its_steps_lead(
    fed: Federation, model: SplitModel, plain: Plain, momentum: float
) -> None:
    """c_i⁺ = (x − y_i)/(η Σ_{k=1..K} (1 + m + … + m^{k−1})): the velocity after k steps of one gradient, summed."""
    plain.momentum = momentum
    found = simulate(fed, model, Scaffold(), rounds=1, momentum=momentum)
    trained, steps = plain.train(model, 3, 1)  # all controls are 0 in the first round
    start, end = values(model), values(trained)
    moved = sum(momentum**i for k in range(steps) for i in range(k + 1))
    equal(found.states[3]["control"], {n: (start[n] - end[n]) / (plain.lr * moved) for n in start})


@dataclasses.dataclass(frozen=True)
class Constant(Scaffold):
    """A loss whose gradient is 3 everywhere, however many steps are taken."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        slope = torch.stack([p.sum() for p in w.params.values()]).sum()
        return 3 * slope * batch.weight.sum() / batch.weight.sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999, 0.99999])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_effective_steps_do_not_cancel(steps: int, momentum: float) -> None:
    exact = sum((1 - Fraction(momentum) ** k) / (1 - Fraction(momentum)) for k in range(1, steps + 1))
    for m in (momentum, torch.tensor(momentum, dtype=torch.float64)):
        found = effective_steps(torch.tensor(float(steps)), m)
        assert found.dtype == torch.float32
        assert float(found) == pytest.approx(float(exact), rel=1e-5)


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 3), (0.9, 1), (0.9, 2), (0.9, 40), (0.5, 5)])
def test_scaffold_meets_a_gradient_that_does_not_change(fed: Federation, momentum: float, steps: int) -> None:
    local = LocalTraining(steps=steps, batch_size=4, optimizer=SGD(0.05, momentum))
    made = make_simulation(fed, [network("group").double()], Constant(), rounds=2, local=local, dtype=torch.float64)
    for number in (1, 2):  # in the second round the steps are corrected by c - c_i
        train_round(made, number)
        for k in CLIENTS:
            for name, found in made.states[k]["control"].items():
                torch.testing.assert_close(found, torch.full_like(found, 3.0), atol=1e-12, rtol=1e-12, msg=name)


def test_scaffold_refuses_optimizers_whose_steps_are_no_multiples_of_gradients(
    fed: Federation, model: SplitModel
) -> None:
    with pytest.raises(BadInput, match="use optimizer=sgd"):
        make_simulation(
            fed, [model], Scaffold(), rounds=1, local=LocalTraining(epochs=1, batch_size=4, optimizer=Adam())
        )


@pytest.mark.slow
def test_feddyn(fed: Federation, model: SplitModel, plain: Plain) -> None:
    alpha = 0.2
    found = simulate(fed, model, FedDyn(alpha=alpha))
    zero = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    h, gradient = dict(zero), {k: dict(zero) for k in CLIENTS}
    for number in range(1, ROUNDS + 1):
        start, trained = values(model), []
        for k in CLIENTS:

            def dynamic(m: SplitModel, x: Tensor, y: Tensor, k: int = k, start: dict[str, Tensor] = start) -> Tensor:
                terms = [
                    alpha / 2 * ((p - start[n]) ** 2).sum() - (p * gradient[k][n]).sum()
                    for n, p in m.named_parameters()
                ]
                return torch.stack(terms).sum()

            y, _ = plain.train(model, k, number, dynamic)
            trained.append(values(y))
            for name, value in trained[-1].items():
                gradient[k][name] = gradient[k][name] - alpha * (value - start[name])
        with torch.no_grad():
            for name, p in model.named_parameters():
                drift = torch.stack([t[name] - start[name] for t in trained]).sum(0)
                h[name] = h[name] - alpha * drift / len(fed)
                p.copy_(torch.stack([t[name] for t in trained]).mean(0) - h[name] / alpha)
    equal(found.server["model"], values(model))
    equal(found.server["h"], h)


@pytest.mark.slow
def test_moon(fed: Federation, model: SplitModel, plain: Plain) -> None:
    found = simulate(fed, model, Moon(mu=2.0, temperature=0.5))
    previous: dict[int, SplitModel] = {}
    cosine = nn.CosineSimilarity(dim=-1)
    for number in range(1, ROUNDS + 1):
        trained = []
        for k in CLIENTS:
            teacher = copy.deepcopy(model).eval()

            last = previous.get(k)

            def contrast(
                m: SplitModel, x: Tensor, y: Tensor, last: SplitModel | None = last, teacher: SplitModel = teacher
            ) -> Tensor:
                if last is None:
                    return torch.zeros((), dtype=x.dtype)
                kept = {name: b.clone() for name, b in m.named_buffers()}  # a second pass moves no statistics
                z = torch.func.functional_call(m, kept, (x,)).z
                with torch.no_grad():
                    towards, away = teacher(x).z, last(x).z
                logits = torch.stack([cosine(z, towards), cosine(z, away)], dim=1) / 0.5
                return 2.0 * nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

            trained.append(plain.train(model, k, number, contrast)[0])
        previous = {k: copy.deepcopy(m).eval() for k, m in zip(CLIENTS, trained, strict=True)}
        model = average(trained, sizes(fed))
    equal(found.server["model"], values(model) | statistics(model))
