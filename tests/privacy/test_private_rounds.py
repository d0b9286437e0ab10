"""Differential privacy of rounds: sensitivity, noise, budget, executors, records and refusals."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import simulate
from tiers import quick
from torch import nn

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batching import DrawArguments, draw_all
from fedhead.engine.clients.private_rounds import CLIP, PrivateClients
from fedhead.privacy.client_dp import ClientDP
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.resume_rules import differences
from fedhead.report.page import content, page

MODEL = "mlp(hidden=[8])"


def digits(clients: int = 4, samples: int = 240, **options: Any) -> fh.Federation:
    return fh.Federation.load("digits", "iid", clients=clients, subset=samples, **options)


def train(privacy: Any, *, clients: int = 4, model: Any = MODEL, **options: Any) -> fh.Result:
    options = {"rounds": 2, "executor": "loop", "method": "fedavg", "batch_size": 1000, **options}
    return fh.run(digits(clients), model, privacy=[privacy], **options)


def client_dp(**parameters: Any) -> fh.ClientDP:
    return fh.ClientDP(**{"epsilon": 50, "delta": 1e-2, "test_seed": 1, **parameters})


def sample_dp(**parameters: Any) -> fh.SampleDP:
    return fh.SampleDP(**{"epsilon": 50, "delta": 1e-4, "test_seed": 1, **parameters})


@dataclasses.dataclass(frozen=True)
class Noiseless(fh.Protection):
    """A protection whose noise nobody adds."""

    covers: ClassVar[Literal["rounds"]] = "rounds"


def test_a_protection_of_rounds_of_another_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="Noiseless adds no noise to rounds: inherit from ClientDP or SampleDP"):
        train(Noiseless())


# -- client_dp ------------------------------------------------------------------------------------
def released(protection: ClientDP, updates: list[fh.Tree], cohort: int, size: int = 3) -> tuple[fh.Tree, fh.Tree]:
    """Return the noisy mean of updates of a zero model, whose `a` has this size, and the server state after it."""
    server = fh.Tree(model=fh.Tree(a=torch.zeros(size).double(), b=torch.zeros(2, 2).double()))
    mean = PrivateClients(protection, 5, cohort, cohort).mean(server, 1, _Task())  # type: ignore[arg-type]
    return mean("model", updates), mean.remember(fh.FedAvg(), server)


class _Task:
    class model:
        fixed: frozenset[str] = frozenset()


@given(st.integers(0, 2**32), st.floats(0.01, 100), st.floats(0.1, 10), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_one_client_moves_the_mean_by_at_most_the_clipping_norm(
    seed: int, scale: float, clip: float, clients: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"a": (3,), "b": (2, 2)}
    updates = [
        fh.Tree({n: scale * torch.randn(s, generator=rng).double() for n, s in shapes.items()}) for _ in range(clients)
    ]
    protection = client_dp(clip=clip, noise_multiplier=1.0)
    whole, less = (released(protection, some, cohort=6)[0] for some in (updates, updates[:-1]))
    distance = math.sqrt(sum(float(t.square().sum()) for t in (whole - less).tensors()))  # the noise is the same
    length = math.sqrt(sum(float(t.square().sum()) for t in updates[-1].tensors()))
    assert distance * 6 == pytest.approx(min(clip, length), rel=1e-6)


def test_noise_of_the_mean_has_the_claimed_variance_also_without_any_client() -> None:
    protection = fh.ClientDP(50, 1e-2, clip=3.0, noise_multiplier=2.0)
    drawn = torch.cat([t.flatten() for t in released(protection, [], 4, size=20_000)[0].tensors()])
    assert float(drawn.std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.03)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)


def test_adaptive_clipping_moves_towards_the_quantile_and_pays_for_its_counts() -> None:
    small = [fh.Tree(a=torch.full((3,), 0.01).double(), b=torch.zeros(2, 2).double())] * 100
    protection = client_dp(clip=1.0, noise_multiplier=1.0, quantile=0.5)
    after = float(released(protection, small, 100)[1][CLIP])
    assert after == pytest.approx(math.exp(-0.2 * 0.5), rel=0.05)  # b̃ = 1 up to the noise of deviation 5/100
    large = [fh.Tree(a=torch.full((3,), 9.0).double(), b=torch.zeros(2, 2).double())] * 100
    assert float(released(protection, large, 100)[1][CLIP]) > 1.0
    exact = fh.ClientDP(50, 1e-2, noise_multiplier=1.0, quantile=0.5)
    drawn = released(exact, [], 4, size=15_000)[0]["a"]
    # σ_b = max(4/20, 1), so z_Δ = (1 − 1/4)^(−1/2)
    assert float(drawn.std()) == pytest.approx((1 - 0.25) ** -0.5 / 4, rel=0.04)


def test_clients_have_equal_weights_and_clip_before_they_send() -> None:
    noiseless = client_dp(epsilon=1e14, clip=0.05, noise_multiplier=1e-6)
    plain = fh.run(digits(), MODEL, rounds=1, executor="loop", batch_size=1000, uploads=["clip(0.05)"])
    private = train(noiseless, rounds=1)
    before = fh.run(digits(), MODEL, rounds=1, executor="loop", batch_size=1000, lr=1e-30)
    moved = private.weights.params - before.weights.params
    assert math.sqrt(float(moved.sq())) <= 0.05 * (1 + 1e-3)
    for name, t in plain.weights.items():  # clients of equal size: both means are the same
        torch.testing.assert_close(private.weights[name], t, atol=2e-6, rtol=1e-4)


def test_cohorts_differ_between_equal_runs() -> None:
    pytest.importorskip("dp_accounting")
    protection = fh.ClientDP(50, 1e-2, noise_multiplier=1.0)
    options = {"clients": 40, "participation": 0.4, "sampler": "poisson", "rounds": 8}
    run, again = (train(protection, **options) for _ in range(2))
    assert [row["participants"] for row in run.rows] != [row["participants"] for row in again.rows]
    assert not any("client_train_loss" in row for row in run.rows)
    (guarantee,) = run.guarantees
    assert guarantee.secret
    assert "nobody who sees the models knows the cohorts" in guarantee.assumptions
    assert guarantee.neighbourhood == "add or remove one"
    assert guarantee.unit == "client"
    with pytest.raises(BadInput, match=r"set sampler=poisson"):
        train(client_dp(noise_multiplier=20.0), clients=20, participation=0.3, rounds=1)


# -- sample_dp ------------------------------------------------------------------------------------
def federation(*sizes: int) -> fh.Federation:
    rng = np.random.default_rng(0)
    return fh.Federation.from_clients([(rng.normal(size=(n, 6)), np.arange(n) % 3) for n in sizes])


def simulated(data: fh.Federation, protection: fh.Protection | None, method: str = "fedavg", **options: Any) -> Any:
    local = fh.LocalTraining(
        options.pop("epochs", 1), options.pop("batch_size", 10_000), fh.SGD(lr=options.pop("lr", 1.0))
    )
    privacy = () if protection is None else (protection,)
    model = fh.build("mlp", (6,), 3, hidden=[options.pop("hidden", 5)])
    options = {"rounds": 1, "dtype": torch.float64, "executor": "loop", "device": "cpu", **options}
    return simulate(data, model, fh.METHODS[method](), privacy=privacy, local=local, **options)


@pytest.mark.parametrize("method", quick(["fedavg", "fedprox", "fedrep", "scaffold", "fedclassavg", "moon"], "fedrep"))
def test_loop_and_stack_give_the_same_numbers(method: str) -> None:
    protection = sample_dp(noise_multiplier=0.8, epsilon=1e4)
    given = {"method": method, "epochs": 2, "rounds": 2, "lr": 0.1}
    loop, stack = (
        simulated(federation(30, 20, 25), protection, executor=executor, **given) for executor in ("loop", "stack")
    )
    for name, t in loop.server["model"].items():
        torch.testing.assert_close(stack.server["model"][name], t, atol=1e-9, rtol=1e-9)
    for k, state in loop.clients.items():
        assert all(torch.allclose(a, b) for a, b in zip(state.tensors(), stack.clients[k].tensors(), strict=True))


def step(data: fh.Federation, clip: float, multiplier: float) -> fh.Tree:
    """Return the sum of gradients of one step of one client."""
    run = simulated(data, sample_dp(clip=clip, noise_multiplier=multiplier, epsilon=1e20))
    return (run.transport.clients.initial[0].params - run.server["model"].params) * len(data.indices[0])


@given(st.integers(2, 30), st.floats(0.01, 10))
@settings(max_examples=10, deadline=None)
def test_one_sample_moves_the_sum_of_gradients_by_at_most_the_clipping_norm(size: int, clip: float) -> None:
    data = federation(30)
    with_sample, without = (dataclasses.replace(data, indices=[np.arange(n)]) for n in (size, size - 1))
    moved = step(with_sample, clip, 1e-9) - step(without, clip, 1e-9)
    assert 0 < math.sqrt(float(moved.sq())) <= clip * (1 + 1e-6)


def test_a_gradient_that_is_not_finite_counts_as_none() -> None:
    """An error would reveal that a sample has one."""
    data = federation(8)
    data.train.x[3] = 1e38
    moved = step(data, 1.0, 1e-9)
    without = step(dataclasses.replace(data, indices=[np.array([0, 1, 2, 4, 5, 6, 7])]), 1.0, 1e-9)
    for name, t in without.items():
        torch.testing.assert_close(moved[name], t, atol=1e-6, rtol=1e-6)


def test_a_step_equals_the_clipped_gradients_of_plain_torch() -> None:
    data, clip = federation(20), 2.0
    run = simulated(data, None, lr=1e-30)
    model, pool = run.transport.clients.task.model, run.transport.clients.pool
    total = [torch.zeros_like(p) for p in model.parameters()]
    clipped = 0
    for row in range(20):
        batch = pool.batch(torch.tensor([row]), torch.ones(1))
        loss = nn.functional.cross_entropy(model(batch.x).logits, batch.y)
        g = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(t.square().sum()) for t in g))
        clipped += norm > clip
        total = [t + each * min(1, clip / norm) for t, each in zip(total, g, strict=True)]
    assert 0 < clipped < 20
    moved = step(data, clip, 1e-9)
    for (name, _), t in zip(model.named_parameters(), total, strict=True):
        torch.testing.assert_close(moved[name], t, atol=1e-6, rtol=1e-6)


def test_noise_of_a_step_has_the_claimed_variance_and_comes_from_entropy() -> None:
    protection = fh.SampleDP(1e12, 1e-4, clip=1e-4, noise_multiplier=1e4)  # noise of deviation 1
    drawn = []
    for _ in range(2):
        run = simulated(federation(20, 20), protection, hidden=2000)
        moved = (run.transport.clients.initial[0].params - run.server["model"].params) * 20
        drawn.append(torch.cat([t.flatten() for t in moved.values()]))
    for numbers in drawn:  # each is the mean of two clients
        assert float(numbers.std()) == pytest.approx(math.sqrt(1 / 2), rel=5 / math.sqrt(2 * len(numbers)))
    assert abs(float(drawn[0] @ drawn[1])) < 5 * math.sqrt(len(numbers)) / 2  # independent


def test_poisson_batches_have_the_expected_size_and_vary() -> None:
    (drawn,) = draw_all([DrawArguments(100, 20, 40, False, key=3, multiplier=1.0)])
    sizes = drawn.weight.sum(1)
    assert len(drawn) == 200
    assert sizes.mean() == pytest.approx(20, abs=1)
    assert sizes.std() == pytest.approx(4, abs=0.6)
    for positions, weight in zip(drawn.positions, drawn.weight, strict=True):
        assert len(set(positions[weight > 0])) == int(weight.sum())
    a, b = draw_all([DrawArguments(9, 3, 1, False, key=k, multiplier=1.0) for k in (1, 2)])
    assert a.positions.shape == b.positions.shape
    assert a.noise is not None
    assert a.noise.samples == 3


def test_each_client_has_the_multiplier_of_its_own_sampling_rate() -> None:
    pytest.importorskip("dp_accounting")
    run = simulated(federation(100, 30), sample_dp(epsilon=3.0), batch_size=10, rounds=2)
    assert run.guarantees[0].epsilon == pytest.approx(3.0, rel=1e-2)
    private = run.transport.clients.privacy
    assert private.multiplier(1, 30) > private.multiplier(0, 100)


# -- budget and records ---------------------------------------------------------------------------
@pytest.mark.parametrize("make", [client_dp, sample_dp])
def test_a_run_spends_its_budget_in_the_planned_rounds(make: Any) -> None:
    run = train(make(epsilon=5.0), rounds=3)
    spent = [row["privacy"]["epsilon"] for row in run.rows]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(5.0)
    (guarantee,) = run.guarantees
    assert guarantee.release == "rounds 1 to 3"
    assert guarantee.mu is not None
    assert not guarantee.secret


@pytest.mark.parametrize("make", [client_dp, sample_dp])
def test_training_stops_when_the_budget_is_spent(make: Any) -> None:
    run = train(make(epsilon=5.0, noise_multiplier=2.0), rounds=50, evaluate_every=7)
    assert 1 < len(run.rows) < 50
    assert run.rows[-1]["stopped"] == "privacy"
    assert run.stopped == f"after round {len(run.rows)} of 50 by the privacy budget"
    assert run.rows[-1]["accuracy"] is not None
    assert run.rows[-1]["privacy"]["epsilon"] <= 5.0


def test_a_run_without_budget_for_a_round_is_refused() -> None:
    for make in (client_dp, sample_dp):
        with pytest.raises(fh.BadInput, match="round 1 would exceed the budget"):
            train(make(epsilon=0.1, noise_multiplier=0.5))


def test_a_resumed_run_continues_the_account() -> None:
    given = {"rounds": 4, "lr": 0.1}
    snapshots: list[Any] = []
    for protection in (client_dp(epsilon=5.0, quantile=0.5), sample_dp(epsilon=5.0)):
        whole = simulated(federation(30, 20), protection, on_round=snapshots.append, **given)
        resumed = simulated(federation(30, 20), protection, resume=snapshots[1], **given)
        assert [row["privacy"] for row in resumed.rows] == [row["privacy"] for row in whole.rows]
        assert resumed.rows[-1]["privacy"]["epsilon"] == pytest.approx(5.0)
        assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())
        snapshots.clear()


def test_rounds_can_not_be_added_to_a_planned_budget() -> None:
    old, new = (Recipe(rounds=rounds, privacy=("client_dp(epsilon=1)",)) for rounds in (3, 5))
    assert [difference.key for difference in differences(old, new)] == ["rounds"]


# -- refusals -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("privacy", "options", "message"),
    [
        ("client_dp(epsilon=0)", {}, "epsilon"),
        ("client_dp(clip=0)", {}, "clip"),
        ("sample_dp(clip=0)", {}, "clip"),
        ("client_dp(delta=0.3)", {}, "below 1/n = 0.25, for n = 4 clients"),
        ("sample_dp(delta=0.01)", {}, "below 1/n"),
        ("client_dp(delta=0.01)", {"method": "scaffold"}, "and the server of scaffold uses other entries"),
        ("client_dp(delta=0.01)", {"method": "fedproto"}, "server of fedproto"),
        ("client_dp(delta=0.01)", {"method": "local"}, "server of local"),
        ("client_dp(delta=0.01)", {"aggregator": "median"}, "leave aggregator out"),
        ("client_dp(delta=0.01)", {"outliers": "drop(norm=5)"}, "leave outliers out"),
        ("client_dp(delta=0.01)", {"sampler": "weighted"}, "set sampler=poisson"),
        ("sample_dp(delta=1e-4)", {"method": "fedproto"}, "this method also reads the"),
        ("sample_dp(delta=1e-4)", {"method": "fedrod"}, "this method also reads the class counts"),
        ("sample_dp(delta=1e-4)", {"class_weights": "balanced"}, "leave class_weights out"),
    ],
)
def test_bad_input_is_refused(privacy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fh.BadInput, match=message):
        train(privacy, **options)


@pytest.mark.parametrize("privacy", ["client_dp(delta=0.01)", "sample_dp(delta=1e-4)"])
def test_batch_norm_is_refused(privacy: str) -> None:
    with pytest.raises(fh.BadInput, match="BatchNorm"):
        train(privacy, model="mlp(hidden=[8], norm=batch)")


def test_the_report_lists_private_rounds(tmp_path: Path) -> None:
    train(client_dp(noise_multiplier=20.0), out=tmp_path / "run")
    sections = {section.id: section for section in page.page(content.load([tmp_path / "run"])).sections}
    assert "rounds 1 to 2" in str(sections["privacy"])
