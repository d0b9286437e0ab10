"""Uploads: what they do to a reply in every executor, from Python, recipes and commands, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import make_simulation
from small import federation, network

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.algorithm.upload import Clip, Float16Upload, Upload
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import run_stage, train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute
from fedhead.stages import STAGES

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.05, 0.9))


def simulate(
    method: str, uploads: list[Upload], executor: Executor | None = None, dtype: torch.dtype = torch.float64
) -> Simulation:
    return make_simulation(
        federation(),
        [network("batch", METHODS[method].head)],
        METHODS[method](),
        executor=executor or Loop(),
        rounds=2,
        local=LOCAL,
        uploads=uploads,
        dtype=dtype,
    )


def replies(simulation: Simulation) -> dict[int, Tree]:
    (job,) = simulation.jobs_of_round(1)
    return dict(zip(job.clients, [reply.send for reply in simulation.executor.train(job)], strict=True))


def test_clipping_scales_an_update_down_to_the_norm_and_leaves_a_smaller_one_alone() -> None:
    plain = simulate("scaffold", [])
    before, sent = plain.server["model"], replies(plain)
    norms = {
        k: float(sum(t.square().sum() for t in (reply["model"] - before).values()).sqrt()) for k, reply in sent.items()
    }
    bound = sorted(norms.values())[1] * 1.001  # two clients stay under it
    clipped = replies(simulate("scaffold", [Clip(bound)]))
    assert sum(norm > bound for norm in norms.values()) == 2
    for k, reply in clipped.items():
        for name, t in reply["control"].items():  # a plain sum, and no model
            assert torch.equal(t, sent[k]["control"][name])
        for name, t in reply["model"].items():
            if norms[k] <= bound:
                assert torch.equal(t, sent[k]["model"][name])
            else:
                expected = before[name] + bound / norms[k] * (sent[k]["model"][name] - before[name])
                torch.testing.assert_close(t, expected, atol=1e-12, rtol=1e-12)


def test_half_precision_halves_the_bytes_of_a_model_and_spares_sums() -> None:
    plain, half = (simulate("fednh", uploads, dtype=torch.float32) for uploads in ([], [Float16Upload()]))
    for k, reply in replies(half).items():
        assert {t.dtype for t in reply["model"].params.values()} == {torch.float16}
        assert reply["model"].nbytes * 2 == replies(plain)[k]["model"].nbytes
        assert {reply[name].dtype for name in ("prototypes", "counts")} == {torch.float32}
    sums = replies(plain)[0]["prototypes"].nbytes + replies(plain)[0]["counts"].nbytes
    rows = [train_round(simulation, 1) for simulation in (plain, half)]
    assert rows[0]["bytes_up"] - 4 * sums == 2 * (rows[1]["bytes_up"] - 4 * sums)
    assert rows[0]["bytes_down"] == rows[1]["bytes_down"]
    for name, t in half.server.leaves().items():
        assert t.dtype == plain.server.leaves()[name].dtype
        torch.testing.assert_close(t, plain.server.leaves()[name], atol=2e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednh", "fedrep"])
def test_the_loop_and_the_stack_send_the_same(method: str) -> None:
    loop, stack = (simulate(method, [Clip(0.05)], executor) for executor in (Loop(), Stack()))
    for number in (1, 2):
        assert train_round(loop, number)["bytes_up"] == train_round(stack, number)["bytes_up"]
    for name, t in loop.server.leaves().items():
        torch.testing.assert_close(stack.server.leaves()[name], t, atol=1e-10, rtol=1e-10)
    apart = simulate(method, [])
    train_round(apart, 1)
    assert any(not torch.equal(t, loop.server.leaves()[name]) for name, t in apart.server.leaves().items())


@pytest.mark.parametrize("name", sorted(STAGES))
def test_stages_pass_the_uploads_too(name: str) -> None:
    method = "fedetf" if STAGES[name].head == "etf" else "fedavg"
    results = []
    for executor in (Loop(), Stack()):
        simulation = simulate(method, [Clip(1.0), Float16Upload()], executor)
        small = {"samples": 20, "epochs": 2, "iterations": 1}
        stage = STAGES[name](**{word: v for word, v in small.items() if word in STAGES[name].__dataclass_fields__})
        results.append(run_stage(simulation, stage).server)
    for path, t in results[0].leaves().items():
        torch.testing.assert_close(results[1].leaves()[path], t, atol=1e-6, rtol=1e-6)


@dataclass(frozen=True)
class Shift(Upload):
    """A user's own upload with both halves, which cancel out."""

    by: float = 2.0

    def encode(self, send: Tree, client: Client) -> Tree:
        return send + self.by

    def decode(self, send: Tree, task: Task) -> Tree:
        return send - self.by


def test_the_server_undoes_uploads_from_the_last_to_the_first() -> None:
    plain, shifted = simulate("fedavg", []), simulate("fedavg", [Shift(), Clip(1e9), Shift(-7.0)])
    assert not torch.equal(
        replies(plain)[0]["model"]["classifier.bias"], replies(shifted)[0]["model"]["classifier.bias"]
    )
    for simulation in (plain, shifted):
        train_round(simulation, 1)
    for name, t in plain.server.leaves().items():
        torch.testing.assert_close(shifted.server.leaves()[name], t, atol=1e-10, rtol=1e-10)


def test_what_is_declared_a_sum_is_only_ever_summed() -> None:
    """Giving one client all of the sum and the others none changes nothing."""
    for method in ("scaffold", "fedproto", "fednh"):
        simulation = simulate(method, [])
        sent = replies(simulation)
        names, (first, *others) = METHODS[method].sums, sent.values()
        total = Tree({name: sum((reply[name] for reply in others), first[name]) for name in names})
        moved = {
            k: reply.replace(total if k == 0 else Tree({name: 0 * total[name] for name in total}))
            for k, reply in sent.items()
        }
        sizes = [float(len(simulation.clients.federation.indices[k])) for k in sent]
        a, b = (
            simulation.experiment.method.aggregate(
                simulation.server, Replies(list(trees), sizes, list(trees.values())), simulation.task
            )
            for trees in (sent, moved)
        )
        for name, t in a.leaves().items():
            torch.testing.assert_close(b.leaves()[name], t, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
def test_uploads_from_python_recipes_and_names_are_the_same(tmp_path: Path) -> None:
    recipe = Recipe(dataset="digits", rounds=2, clients=3, subset=90, batch_size=16, stages=("ccvr",))
    clipped = recipe.override(["uploads=[clip(0.2), half]"])
    assert build_experiment(clipped).uploads == (Clip(0.2), Float16Upload())
    assert Recipe.from_yaml(clipped.to_yaml()) == clipped
    plain, less = (
        execute(one, tmp_path / str(k), Compute(executor="loop", device="cpu"))
        for k, one in enumerate((recipe, clipped))
    )
    assert less["bytes_up"] < plain["bytes_up"]
    fed = federation()
    settings = {"rounds": 1, "executor": "loop", "device": "cpu"}
    by_name = fh.run(fed, network("group"), uploads=["clip(0.2)", "half"], **settings)
    by_object = fh.run(fed, network("group"), uploads=[fh.Clip(0.2), fh.Float16Upload()], **settings)
    mine = fh.run(fed, network("group"), uploads=[Shift()], **settings)
    assert by_name.bytes_up == by_object.bytes_up < mine.bytes_up
    for name, t in by_name.server.leaves().items():
        assert torch.equal(by_object.server.leaves()[name], t)


@pytest.mark.parametrize(
    ("uploads", "method", "reason"),
    [
        (["clop(1.0)"], "fedavg", "did you mean 'clip'"),
        (["clip(1.0, 2.0)"], "fedavg", "2 values are too many, clip takes norm"),
        (["clip(-1.0)"], "fedavg", "norm: -1.0 .*out of range"),
        (["clip(size=1.0)"], "fedavg", "size"),
        (["clip(1.0"], "fedavg", "can't be read: write name or name"),
        (["clip"], "fedproto", "clip has nothing to clip: the clients of fedproto"),
        ("clip", "fedavg", "give a list"),
        ([fh.FedAvg], "fedavg", "FedAvg is no upload: let FedAvg inherit from fedhead.Upload"),
        ([3], "fedavg", "upload is int"),
    ],
)
def test_bad_uploads_are_named(uploads: list[str], method: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        fh.run(federation(), network("group"), method, rounds=1, uploads=uploads)


@pytest.mark.parametrize(
    ("returned", "words"), [(None, "returned NoneType"), (Tree(), "returned nothing"), (Tree(modle=Tree()), "modle")]
)
def test_an_upload_that_leaves_entries_as_they_were_is_refused(returned: Any, words: str) -> None:
    class Forgets(Upload):
        def encode(self, send: Tree, client: Any) -> Tree:
            return returned  # type: ignore[no-any-return]  # the fault that is tested

    federation = fh.Federation.load("digits", clients=2, subset=60)
    with pytest.raises(BadInput, match=f"upload Forgets: encode .*{words}"):
        fh.run(federation, "mlp", rounds=1, uploads=[Forgets()], executor="loop", device="cpu")
