"""A method that changes its own attributes: a run that is stopped and resumed goes on with the changed ones."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.methods import METHODS
from fedhead.recipes import build
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs import reopen
from fedhead.runs.run import Compute, execute, execute_together
from fedhead.runs.run_folder import METRICS

OWN = """
from dataclasses import dataclass
from functools import cached_property
import random

import numpy as np
import torch

import fedhead as fh


@dataclass(frozen=True)
class Growing(fh.FedProx):
    def aggregate(self, server, replies, task):
        object.__setattr__(self, "mu", self.mu + 0.5)
        return super().aggregate(server, replies, task)


@dataclass(frozen=True)
class GrowingTensor(fh.FedAvg):
    def loss(self, w, batch, client):
        return super().loss(w, batch, client) * getattr(self, "factor", torch.ones(2))[1]

    def aggregate(self, server, replies, task):
        object.__setattr__(self, "factor", getattr(self, "factor", torch.ones(2)) * 0.5)
        return super().aggregate(server, replies, task)


@dataclass(frozen=True)
class Lost(fh.FedAvg):
    def aggregate(self, server, replies, task):
        object.__setattr__(self, "seen", set(replies.clients))
        return super().aggregate(server, replies, task)


@dataclass(frozen=True)
class Looks(fh.FedAvg):
    def loss(self, w, batch, client):
        loss = super().loss(w, batch, client)
        object.__setattr__(self, "last", loss)
        object.__setattr__(self, "several", {"last": loss})
        return loss


@dataclass(frozen=True)
class Slower(fh.Aggregator):
    share: float = 1.0

    def combine(self, updates, previous):
        object.__setattr__(self, "share", self.share / 2)
        return updates[0] * self.share


@dataclass(frozen=True)
class OwnGenerator(fh.FedAvg):
    kind: str = "numpy"

    def __post_init__(self):
        kinds = {
            "numpy": lambda: np.random.default_rng(0),
            "torch": lambda: torch.Generator().manual_seed(0),
            "python": lambda: random.Random(0),
            "several": lambda: {"of clients": [np.random.RandomState(0)]},
        }
        object.__setattr__(self, "source", kinds[self.kind]())

    def aggregate(self, server, replies, task):
        source = self.source
        if self.kind == "torch":
            torch.rand(1, generator=source)
        else:
            (source["of clients"][0].rand if self.kind == "several" else source.random)()
        return super().aggregate(server, replies, task)


@dataclass(frozen=True)
class Cached(fh.FedAvg):
    @cached_property
    def seen(self):
        return {1, 2}

    def aggregate(self, server, replies, task):
        self.seen
        return super().aggregate(server, replies, task)
"""


class Stopped(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def recipe_of(folder: Path, name: str, *words: str) -> Recipe:
    (folder / "mine.py").write_text(OWN)
    small = ["rounds=4", "local_epochs=1", "model.hidden=[8]", "clients=4", "subset=200", "lr=0.05"]
    return load("digits", [*small, f"method={folder / 'mine.py'}:{name}", *words])


def stop_after(number: int) -> Any:
    def on_row(row: Any) -> None:
        if row["round"] == number:
            raise Stopped

    return on_row


def small_federation() -> fh.Federation:
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    return fh.Federation.dirichlet(x, y, clients=2, alpha=10.0, test=0.2, seed=0)


def losses(folder: Path) -> list[Any]:
    return [json.loads(line)["train_loss"] for line in (folder / METRICS).read_text().splitlines()]


@pytest.mark.parametrize("name", ["Growing", "GrowingTensor"])
@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_a_resumed_run_goes_on_with_what_its_method_has_changed(tmp_path: Path, name: str, executor: str) -> None:
    recipe, settings = recipe_of(tmp_path, name), Compute(executor=executor)
    whole = execute(recipe, tmp_path / "whole", settings)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "stopped", settings, on_row=stop_after(2))
    resumed = execute(recipe, tmp_path / "stopped", settings, resume=True)
    assert resumed["test_loss"] == whole["test_loss"]
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_a_resumed_run_goes_on_with_what_its_aggregator_has_changed(tmp_path: Path) -> None:
    recipe, settings = (
        recipe_of(tmp_path, "Cached", f"aggregator={tmp_path / 'mine.py'}:Slower"),
        Compute(executor="loop"),
    )
    whole = execute(recipe, tmp_path / "whole", settings)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "stopped", settings, on_row=stop_after(2))
    assert execute(recipe, tmp_path / "stopped", settings, resume=True)["test_loss"] == whole["test_loss"]
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_a_run_begun_in_python_can_be_loaded_without_its_sampler(tmp_path: Path) -> None:
    class Own(fh.Sampler):
        calls = 0

        def select(self, round: int, count: int, sizes: Any, seed: int) -> list[int]:
            object.__setattr__(self, "calls", self.calls + 1)
            object.__setattr__(self, "tensor", torch.ones(self.calls))
            return sorted(sizes)

    fh.run(small_federation(), "mlp", fh.FedAvg(), rounds=2, sampler=Own(), out=tmp_path / "run")
    assert "model" in fh.load(tmp_path / "run").server


@pytest.mark.parametrize("kind", ["numpy", "torch", "python", "several"])
def test_a_generator_that_was_drawn_from_is_named_and_not_resumed(tmp_path: Path, kind: str, caplog: Any) -> None:
    recipe, settings = recipe_of(tmp_path, "OwnGenerator", f"method.kind={kind}"), Compute(executor="loop")
    warn_once.cache_clear()
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", settings, on_row=stop_after(2))
    assert "OwnGenerator.source changes during the run" in caplog.text
    with pytest.raises(BadInput, match=r"can't be resumed: OwnGenerator\.source changed"):
        execute(recipe, tmp_path / "run", settings, resume=True)


def test_joined_runs_go_on_with_what_each_method_has_changed(tmp_path: Path) -> None:
    recipes = [recipe_of(tmp_path, "Growing", f"seed={seed}") for seed in (0, 1)]
    whole = execute_together(recipes, [tmp_path / "a", tmp_path / "b"], Compute())
    stopped = [tmp_path / "c", tmp_path / "d"]
    stop = stop_after(2)
    with pytest.raises(Stopped):
        execute_together(recipes, stopped, Compute(), on_row=lambda recipe, row: stop(row))
    resumed = execute_together(recipes, stopped, Compute(), resume=True)
    assert [row["test_loss"] for row in resumed] == [row["test_loss"] for row in whole]


def test_a_run_that_is_opened_again_has_what_its_method_has_changed(tmp_path: Path) -> None:
    execute(recipe_of(tmp_path, "Growing", "method.mu=0.1"), tmp_path / "run", Compute())
    method: Any = reopen.reopen(tmp_path / "run").simulation.method
    assert method.mu == pytest.approx(2.1)


def test_a_kept_round_has_what_the_method_had_in_it(tmp_path: Path) -> None:
    class KeepSecond(fh.Callback):
        keeps = True

        def after_round(self, record: Any, memory: Any) -> Any:
            return fh.KEEP if record["round"] == 2 else None

    class Method(fh.FedProx):
        def aggregate(self, server: Any, replies: Any, task: Any) -> Any:
            object.__setattr__(self, "mu", self.mu + 0.5)
            return super().aggregate(server, replies, task)

    method = Method(mu=0.0)
    fh.run(small_federation(), "mlp", method, rounds=4, callbacks=[KeepSecond()])
    assert method.mu == 1.0


@pytest.mark.parametrize("in_file", [False, True])
def test_going_on_with_a_method_that_the_run_has_changed_says_to_build_it_anew(tmp_path: Path, in_file: bool) -> None:
    class Method(fh.FedProx):
        def aggregate(self, server: Any, replies: Any, task: Any) -> Any:
            object.__setattr__(self, "mu", self.mu + 0.5)
            return super().aggregate(server, replies, task)

    recipe, federation = recipe_of(tmp_path, "Growing"), small_federation()
    kind = type(build.component(METHODS, recipe.method, {}, recipe.folders)) if in_file else Method
    method = kind(mu=0.1)
    fh.run(federation, "mlp", method, rounds=2, out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"0\.1.* is now .*1\.1.*; build anew what a run has changed, such as a method"):
        fh.run(federation, "mlp", method, rounds=4, out=tmp_path / "run", resume=True)
    fh.run(federation, "mlp", kind(mu=0.1), rounds=4, out=tmp_path / "run", resume=True)


def test_what_no_checkpoint_can_hold_is_named_and_not_resumed(tmp_path: Path, caplog: Any) -> None:
    recipe = recipe_of(tmp_path, "Lost")
    with caplog.at_level(logging.WARNING, "fedhead"), pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", Compute(executor="loop"), on_row=stop_after(2))
    assert "Lost.seen changes during the run" in caplog.text
    with pytest.raises(BadInput, match=r"can't be resumed: Lost\.seen changed .* keep it in the server's state"):
        execute(recipe, tmp_path / "run", Compute(), resume=True)


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_what_a_hook_keeps_to_look_at_does_not_stop_the_run(tmp_path: Path, executor: str) -> None:
    execute(recipe_of(tmp_path, "Looks"), tmp_path / "run", Compute(executor=executor))
    assert len(losses(tmp_path / "run")) == 4


def test_a_cached_property_is_no_change(tmp_path: Path, caplog: Any) -> None:
    recipe, settings = recipe_of(tmp_path, "Cached"), Compute(executor="loop")
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", settings, on_row=stop_after(2))
    execute(recipe, tmp_path / "run", settings, resume=True)
    assert "seen" not in caplog.text
