"""KT-pFL: coefficients, distillation and what is sent, against independent computations."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixed import pair
from simulations import make_simulation
from small import CLASSES, federation, network
from torch.nn import functional as F

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch, Output
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation, Samples
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods.ktpfl import KTpFL, step_size
from fedhead.models.split_model import load

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))


def simulate(method: KTpFL, rounds: int = 0, **settings: float) -> Simulation:
    models = [network("batch")] if method.share == "all" else pair()
    simulation = make_simulation(federation(), models, method, rounds=9, local=LOCAL, dtype=torch.float64, **settings)
    for number in range(1, rounds + 1):
        train_round(simulation, number)
    return simulation


def soft(seed: int, clients: int, rows: int = 6, classes: int = 4) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(clients, rows, classes, generator=g, dtype=torch.float64) * 3, dim=-1)


@given(st.integers(0, 99), st.integers(2, 6), st.floats(0, 2), st.floats(0.01, 5))
def test_coefficients_follow_the_gradient_of_their_loss(seed: int, clients: int, penalty: float, lr: float) -> None:
    method = KTpFL(penalty=penalty, coefficient_lr=lr)
    knowledge, c = soft(seed, clients), torch.softmax(soft(seed + 1, 1, clients, clients)[0], dim=1)
    got = method.learn(c, Tree({str(k): Tree(soft=s) for k, s in enumerate(knowledge)}), list(range(clients)))
    for k in range(clients):
        row = c[k].clone().requires_grad_()
        mixture = sum(row[m] * knowledge[m] for m in range(clients))
        loss = F.mse_loss(mixture, knowledge[k]) + penalty * F.mse_loss(row, torch.full_like(row, 1 / clients))
        loss.backward()
        expected = torch.softmax(method.sharpness * (row.detach() - lr * row.grad), dim=0)
        torch.testing.assert_close(got[k], expected, atol=1e-10, rtol=1e-9)


@given(st.integers(0, 99), st.integers(2, 6), st.floats(-7, 4))
def test_the_public_codes_step_goes_by_fives_until_it_is_neither_small_nor_large(
    seed: int, clients: int, scale: float
) -> None:
    g = torch.randn(clients, clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10**scale
    for row, found in zip(g, step_size(g), strict=True):
        mean, lr = float(row.abs().mean()), 1.0
        for _ in range(5):  # as the public code writes it
            if mean > 0.01:
                mean, lr = mean / 5, lr / 5
            if mean < 0.01:
                mean, lr = mean * 5, lr * 5
        assert float(found) == pytest.approx(lr)


def test_coefficients_are_learned_by_default() -> None:
    """20 clients of two classes each, softened at T = 10: those who hold the same classes trust each other more."""
    logits = torch.randn(20, 100, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for k in range(20):
        logits[k][:, [2 * k % 10, 2 * k % 10 + 1]] += 6
    method, c = KTpFL(), torch.full((20, 20), 1 / 20, dtype=torch.float64)
    knowledge = Tree({str(k): Tree(soft=torch.softmax(t / method.temperature, dim=-1)) for k, t in enumerate(logits)})
    for _ in range(20):
        c = method.learn(c, knowledge, range(20))
    alike = torch.arange(20).unsqueeze(0) % 5 == torch.arange(20).unsqueeze(1) % 5
    assert c[alike].mean() > 1.2 * c[~alike].mean()


def test_clients_that_say_the_same_keep_equal_coefficients() -> None:
    knowledge = Tree({str(k): Tree(soft=soft(0, 1)[0]) for k in range(4)})
    c = KTpFL(penalty=0).learn(torch.full((4, 4), 0.25, dtype=torch.float64), knowledge, range(4))
    torch.testing.assert_close(c, torch.full((4, 4), 0.25, dtype=torch.float64))


@given(
    st.integers(0, 99),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True), min_size=1, max_size=4),
)
def test_rows_stay_distributions_over_those_who_have_spoken(seed: int, cohorts: list[list[int]]) -> None:
    method, c, known = KTpFL(coefficient_lr=1.0), torch.full((5, 5), 0.2, dtype=torch.float64), set()
    spoken = soft(seed, 5)
    for cohort in cohorts:
        known |= set(cohort)
        knowledge = Tree({str(k): Tree(soft=spoken[k]) for k in sorted(known)})
        c = method.learn(c, knowledge, sorted(cohort))
        torch.testing.assert_close(c.sum(1), torch.ones(5, dtype=torch.float64))
        assert (c >= 0).all()
        silent = [k for k in range(5) if k not in known]
        assert not c[cohort][:, silent].any()
        target = method.per_client(Tree(knowledge=knowledge, coefficients=c), 0, None)["target"]["soft"]  # type: ignore[arg-type]  # the task is not looked at
        torch.testing.assert_close(target.sum(-1), torch.ones(6, dtype=torch.float64))


def test_clients_that_agree_trust_each_other_most() -> None:
    base = soft(0, 2, rows=50)
    knowledge = Tree({str(k): Tree(soft=base[k % 2]) for k in range(4)})
    method, c = KTpFL(coefficient_lr=2.0, penalty=0.01), torch.full((4, 4), 0.25, dtype=torch.float64)
    for _ in range(20):
        c = method.learn(c, knowledge, range(4))
    assert c[0, [0, 2]].sum() > 0.6
    assert c[1, [1, 3]].sum() > 0.6


def test_a_second_round_distils_the_mixture_and_then_trains() -> None:
    method = KTpFL(temperature=3.0, distillation_batch=8)
    simulation = simulate(method, rounds=1)
    sent = {int(k): s["soft"] for k, s in simulation.server["knowledge"].items()}
    c = simulation.server["coefficients"]
    pool, public = simulation.clients.pool, simulation.clients.public
    assert public is not None
    expected = {}
    for job in simulation.jobs(method, simulation.server, simulation.states, simulation.clients.holders, 2):
        for place, client in enumerate(job.clients):
            model = copy.deepcopy(job.program.task.model).train()
            load(model, simulation.states[client]["own"])
            target = sum(c[client, m] * s for m, s in sent.items())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            distil, train = job.batches(place)
            assert len(distil) == 3  # 20 public samples in batches of 8
            for table, source in ((distil, public), (train, pool)):
                for step in range(len(table)):
                    batch, _ = table.batch(step, source)
                    real = batch.weight > 0
                    logits = model(batch.x[real]).logits
                    if source is public:
                        log_q = F.log_softmax(logits / 3.0, dim=1)
                        loss = F.kl_div(log_q, target[batch.indices[real]], reduction="batchmean")
                    else:
                        loss = F.cross_entropy(logits, batch.y[real])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            model.eval()
            everything = public.view(torch.arange(len(public)), None)
            expected[client] = torch.softmax(model(everything).logits.detach() / 3.0, dim=1)
    train_round(simulation, 2)
    for client, prediction in expected.items():
        got = simulation.server["knowledge"][str(client)]["soft"]
        torch.testing.assert_close(got, prediction, atol=1e-9, rtol=1e-9)


def test_a_first_round_only_trains() -> None:
    simulation = simulate(KTpFL())
    for job in simulation.jobs(
        simulation.experiment.method, simulation.server, simulation.states, simulation.clients.holders, 1
    ):
        assert all(next(len(s) for s in mine) == 0 for mine in job.schedules)
    assert train_round(simulation, 1)["bytes_down"] == 0


def test_public_samples_are_the_same_for_all_and_never_augmented() -> None:
    simulation = simulate(KTpFL(), rounds=1)
    public, fed = simulation.clients.public, simulation.clients.federation
    assert public is not None
    keys = torch.arange(len(public))
    assert torch.equal(public.view(keys, keys), fed.transform(fed.public.x).double())


def test_after_a_first_round_without_clients_there_is_nothing_to_distil() -> None:
    with pytest.raises(BadInput, match=r"no client has sent predictions before round 2, .* take part in round 1"):
        train_round(simulate(KTpFL()), 2)


def test_predictions_alone_cross_the_wire() -> None:
    simulation = simulate(KTpFL(), rounds=1)
    size = 20 * CLASSES * 8
    traffic = train_round(simulation, 2)
    assert (traffic["bytes_up"], traffic["bytes_down"]) == (4 * size, 4 * size)


@pytest.mark.parametrize("transfer", [1.0, 0.25])
def test_plus_weight_goes_on_from_the_mixture_of_models(transfer: float) -> None:
    method = KTpFL(share="all", transfer=transfer)
    simulation = simulate(method, rounds=2)
    models = {int(k): w for k, w in simulation.server["knowledge"].items()}
    c = simulation.server["coefficients"]
    torch.testing.assert_close(c.sum(1), torch.ones(5, dtype=torch.float64))
    job = simulation.jobs(method, simulation.server, simulation.states, simulation.clients.holders, 3)[0]
    for place, client in enumerate(job.clients):
        start = method.start(job.program.client(job.inputs(place)))
        for name in start:
            mixture = sum(c[client, m] * w[name] for m, w in models.items()) / c[client, list(models)].sum()
            torch.testing.assert_close(start[name], (1 - transfer) * models[client][name] + transfer * mixture)
    with pytest.raises(BadInput, match="client 1: ktpfl averages"):
        make_simulation(federation(), pair(), method, rounds=1, local=LOCAL)


# -- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "name", "value"),
    [
        ("all", "temperature", 2.0),
        ("all", "distillation_epochs", 2),
        ("all", "distillation_batch", 8),
        ("all", "distillation_loss", "mse"),
        ("predictions", "transfer", 0.5),
    ],
)
def test_options_without_effect_are_refused(share: Literal["predictions", "all"], name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"KTpFL: {name}: {value} would have no effect with share={share}: [^\n]+$"):
        KTpFL(share=share, **{name: value})


def test_public_data_of_another_shape_is_refused() -> None:
    x, y = np.zeros((6, 1, 6, 6), np.uint8), np.arange(6) % 3
    with pytest.raises(BadInput, match=r"public samples of shape \(1, 8, 8\).* training samples of \(1, 6, 6\)"):
        Federation.from_arrays(x, y, clients=2, public=(np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.int64)))
    with pytest.raises(BadInput, match=r"public samples .*float32.* training samples .*uint8"):
        Federation.from_arrays(x, y, clients=2, public=(np.zeros((4, 1, 6, 6)), np.zeros(4, np.int64)))


def test_a_federation_without_public_data_is_refused() -> None:
    with pytest.raises(BadInput, match="ktpfl needs public data"):
        make_simulation(replace(federation(), public=None), pair(), KTpFL(), rounds=1, local=LOCAL)
    make_simulation(replace(federation(), public=None), [network("batch")], KTpFL(share="all"), rounds=1, local=LOCAL)


def test_public_labels_may_name_other_classes() -> None:
    fed = federation()
    other = Samples(fed.test.x, torch.full((20,), 99))  # e.g. CIFAR-100 beside CIFAR-10
    simulation = make_simulation(replace(fed, public=other), pair(), KTpFL(), rounds=2, local=LOCAL)
    for number in (1, 2):
        train_round(simulation, number)
    assert simulation.server.finite()


def test_the_first_round_may_have_its_own_number_of_epochs() -> None:
    """As FedClassAvg's code of KT-pFL: one epoch before the first exchange, then the run's."""
    local = replace(LOCAL, epochs=3)
    made = make_simulation(federation(), pair(), KTpFL(initial_epochs=1), rounds=9, local=local, dtype=torch.float64)
    for number, epochs in ((1, 1), (2, 3)):
        jobs = made.jobs(made.experiment.method, made.server, made.states, made.clients.holders, number)
        for job in jobs:
            for k, (public, first, later) in zip(job.clients, job.schedules, strict=True):
                per_epoch = -(-len(made.clients.federation.indices[k]) // 4)
                assert len(first) + len(later) == epochs * per_epoch
                assert (len(later) == 0) == (number == 1)
                assert (len(public) == 0) == (number == 1)
        train_round(made, number)


def test_distillation_by_the_mean_square() -> None:
    method, made = KTpFL(distillation_loss="mse"), simulate(KTpFL(), rounds=1)
    (job, *_) = made.jobs(method, made.server, made.states, made.clients.holders, 2)
    target = job.per_client[0]["target"]["soft"]
    logits = torch.randn(len(target), CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    class Says:
        received = job.per_client[0]

        def apply(self, w: object, x: object) -> Output:
            return Output(logits, logits, logits)

    batch = Batch(logits, torch.zeros(len(target)), torch.ones(len(target)), torch.arange(len(target)), torch.zeros(2))
    found = method.distil(made.clients.initial[0], batch, Says())  # type: ignore[arg-type]  # all that it asks of a client
    torch.testing.assert_close(found, F.mse_loss(torch.softmax(logits, dim=1), target))
