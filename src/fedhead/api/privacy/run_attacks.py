"""Attacks on a simulated run, measured against its clients' samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.upload import SecureSum
from fedhead.api.privacy import membership_inference
from fedhead.api.privacy.attack import Attack, Audit, features_of, minus
from fedhead.api.result import Result
from fedhead.calibration.statistics import Statistics, merge
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.policies.secure_sums import find
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.job import Job
from fedhead.executors.loop import Loop
from fedhead.flower.wire.protocol import exchanges
from fedhead.models.split_model import SplitModel
from fedhead.papers.analyses.inversion import Inversions, invert
from fedhead.privacy import attacks, gaussian
from fedhead.stages.statistics_stage import CENTER, FeatureCenter, StatisticsStage

EXACT = 0.01  # relative error below which a feature counts as recovered
INVERTED = 5  # features from which inputs are reconstructed


@dataclass(frozen=True)
class _Truth:
    """Samples of one client and their features, which attacks are measured against."""

    x: Inputs
    y: Tensor
    z: Tensor  # features
    sent: Tensor  # features as the stage adds them up
    w: Weights
    model: SplitModel


class _View(NamedTuple):
    """Statistics that the server sees, and the clients that they are of."""

    truth: list[_Truth]
    statistics: Statistics


@dataclass
class RunAudit:
    """Attacks on a run."""

    result: Result
    minimum: int
    shadows: int
    releases: int
    seed: int

    def __post_init__(self) -> None:
        trained = self.result.trained
        if trained.states is None or not isinstance(simulation := trained.with_data(), Simulation):
            raise BadInput("audit: the samples are at the sites: audit the statistics of a site, or a simulation")
        self.simulation, self.clients, self.server = simulation, simulation.clients, simulation.server
        recipe = self.result.record.recipe
        self.summed = find(self.clients.experiment.uploads) is not None
        self.protections = [*([SecureSum.name] if self.summed else []), *recipe.privacy]
        if self.minimum > 1:
            self.protections.append(f"min_class_count={self.minimum}")

    def audit(self) -> Audit:
        """Run all attacks that apply to the run."""
        rows: list[Attack] = []
        experiment, tasks = self.clients.experiment, self.clients.tasks
        try:
            for label, algorithm in exchanges(experiment.method, experiment.stages).items():
                if not isinstance(algorithm, StatisticsStage):
                    continue
                if algorithm.centered:
                    after = self.result.trained.after(label.partition(".")[0]).server
                    self.server = self.simulation.server.replace({CENTER: after[CENTER]})
                on = f"stage {label}"
                rows += [] if isinstance(algorithm, FeatureCenter) else self._statistics(on, algorithm)
                rows += self._canaries(on, algorithm)
        finally:
            self.clients.tasks = tasks
        return Audit(self.protections, rows + self._membership())

    # -- statistics of a stage --------------------------------------------------------------------
    def _statistics(self, on: str, stage: StatisticsStage) -> list[Attack]:
        plain, tasks = replace(stage, release=None).on_method(stage.method), self.clients.tasks
        truth, guarded = self._truth(plain), self._truth(stage)
        sent, again = self._sent(plain), self._sent(plain, drop=True)
        single = [_View([truth[k]], plain.received(sent[k])) for k in sent]
        changed = [_View([truth[k]], minus(plain.received(sent[k]), plain.received(again[k]))) for k in again]
        self.clients.tasks = [replace(task, min_class_count=self.minimum) for task in tasks]
        parts, second, others = (
            {k: stage.received(tree) for k, tree in self._sent(stage, drop).items()} for drop in (False, False, True)
        )
        if self.summed:  # if one client changes, the totals differ by its sample, whoever else is in them
            first = next(iter(others))
            totals = [merge(view.values()) for view in (parts, {**second, first: others[first]})]
            visible = [_View(list(guarded.values()), totals[0])]
            differences = [_View([guarded[first]], minus(*totals))]
        else:
            visible = [_View([guarded[k]], part) for k, part in parts.items()]
            differences = [_View([guarded[k]], minus(parts[k], part)) for k, part in others.items()]
        self.clients.tasks = tasks
        small = sum(n for client in truth.values() for n in torch.bincount(client.y).tolist() if n <= 2)
        exposed = f"share of features recovered, of {small} samples in classes of at most 2"
        error = f"median error of inputs computed from {INVERTED} features; 0: exact, 1: no better than a grey image"
        left_out = "share of features recovered by subtracting two releases"
        counted = "share of class counts recovered"
        share, lost = (_recovered(views) / max(small, 1) for views in (single, visible))
        before, after = (_recovered(views) / len(views) for views in (changed, differences))
        return [
            Attack("reconstruction", on, exposed, share, lost),
            Attack("inversion", on, error, self._inverted(single), self._inverted(visible), 1.0),
            Attack("differencing", on, left_out, before, after),
            Attack("label counts", on, counted, _known(single), _known(visible)),
        ]

    def _jobs(self, stage: Algorithm, drop: bool = False) -> list[Job]:
        """Return the jobs of a stage; with `drop`, each client without a sample of its largest class."""
        simulation, clients = self.simulation, self.clients
        downlink = make_downlink(stage, self.server, clients.holders, clients.task_of)
        jobs = clients.work(stage, downlink, simulation.states, simulation.round + 1, trains=False)
        if not drop:
            return jobs
        y, shorter = clients.pool.y.cpu().numpy(), []
        for job in jobs:
            largest = [int(count.argmax()) for count in job.counts]
            rows = [np.delete(ids, np.flatnonzero(y[ids] == c)[0]) for ids, c in zip(job.indices, largest, strict=True)]
            counts = [
                count.index_add(0, torch.tensor([c], device=count.device), count.new_tensor([-1.0]))
                for count, c in zip(job.counts, largest, strict=True)
            ]
            shorter.append(
                replace(job, indices=rows, counts=counts).take([n for n, ids in enumerate(rows) if len(ids)])
            )
        return shorter

    def _sent(self, stage: StatisticsStage, drop: bool = False, noise: bool = True) -> dict[int, Tree]:
        """Return the replies of all clients, with their noise if the stage has some."""
        sent = {}
        for job in self._jobs(stage, drop):
            for k, reply in zip(job.clients, Loop().train(job), strict=True):
                sent[k] = stage.add_noise(reply.send, k, self.clients.task_of(k)) if noise else reply.send
        return sent

    def _truth(self, stage: StatisticsStage) -> dict[int, _Truth]:
        """Return the samples and features of every client."""
        truth = {}
        for job in self._jobs(stage):
            for n, k in enumerate(job.clients):
                rows, client = (
                    torch.from_numpy(job.indices[n]).to(self.clients.device),
                    job.program.client(job.inputs(n)),
                )
                x, w = self.clients.pool.view(rows, None), stage.start(client)
                with torch.no_grad():
                    z = client.apply(w, x, train=False).z
                used = stage.bounded(stage.transformed(z), stage.center_of(client)).double()
                truth[k] = _Truth(x, self.clients.pool.y[rows], z, used, w, client.task.model)
        return truth

    def _inverted(self, views: Sequence[_View]) -> float | None:
        """Return the median error of inputs whose features are those of one-sample classes of one client."""
        cases: list[tuple[_Truth, Tensor, Tensor]] = []
        for view in views:
            data = view.truth[0]
            if len(view.truth) > 1 or not isinstance(data.x, Tensor) or not data.x.is_floating_point():
                continue  # totals of several clients, named inputs, tokens
            if not torch.equal(data.z.double(), data.sent):
                continue  # features that the stage transforms or scales
            for c, features in features_of(view.statistics).items():
                x = data.x[data.y == c]
                if len(x) == 1 and all(map(torch.equal, data.w.values(), (cases[0][0] if cases else data).w.values())):
                    cases.append((data, features[:1].to(x), x))
        if not cases:
            return None
        data, shape = cases[0][0], cases[0][2].shape[1:]
        features, inputs = (torch.cat(rows[:INVERTED]) for rows in list(zip(*cases, strict=True))[1:])
        guesses = invert(data.model, data.w, features, shape, seed=self.seed)
        errors = [Inversions(x, [1], guess[None]).errors()[0] for x, guess in zip(inputs, guesses, strict=True)]
        return float(np.median(errors))

    def _canaries(self, on: str, stage: StatisticsStage) -> list[Attack]:
        """Bound ε from below: one client's statistics with one of its samples and without it, both with much noise."""
        if stage.release is None or not stage.mu:
            return []
        # of noise that clients share, the server sees the sum, which is distributed like that of one client
        fresh = replace(stage.release, protection=replace(stage.release.protection, test_seed=None))
        stage = replace(stage, release=fresh).on_method(stage.method)
        with_it, without = (self._sent(stage, drop, noise=False) for drop in (False, True))
        k = next(iter(without))
        task = replace(self.clients.task_of(k), noise_shares=1)
        exact = without[k].leaves()
        signal = {name: t.double() - exact[name].double() for name, t in with_it[k].leaves().items()}

        def noise() -> dict[str, Tensor]:
            leaves = stage.add_noise(without[k], k, task).leaves()
            return {name: leaves[name].double() - exact[name].double() for name in signal}

        draws = [noise() for _ in range(20)]
        scale = {name: float(np.mean([float(draw[name].square().mean()) for draw in draws])) for name in signal}  # σ²
        scale = {name: square for name, square in scale.items() if square}
        scores = np.empty(self.releases)
        for n in range(self.releases):
            drawn = noise()
            scores[n] = sum(float((drawn[name] * signal[name]).sum()) / scale[name] for name in scale)
        shift = sum(float(signal[name].square().sum()) / scale[name] for name in scale)
        delta = fresh.protection.delta
        bound = attacks.epsilon_bound(scores + shift, scores, delta)
        claimed = gaussian.epsilon_of(delta, stage.mu)
        measure = f"lower bound on ε, at 95 % confidence by {self.releases:,} releases; claimed: {claimed:.3g}"
        return [Attack("canaries", on, measure, None, bound)]

    # -- models -----------------------------------------------------------------------------------
    def _membership(self) -> list[Attack]:
        """Infer membership from the global model, or from the first client's."""
        federation, trained = self.clients.federation, self.result.trained
        if federation.test is None or federation.objective != "multiclass":
            return []
        rows = []
        for stage in (None, *trained.algorithms):
            state = trained.after(stage)
            shared = state.algorithm.global_model(state.server, self.clients.task) is not None
            if stage is not None and not shared:
                continue  # personal models after a stage are not in the run folder
            client = None if shared else self.clients.holders[0]
            samples, member = membership_inference.candidates(federation, client, self.seed)
            scores = membership_inference.confidences(trained.after(stage, client), samples.x, samples.y, client)
            on = "model" if stage is None else f"model after {stage}"
            on += "" if shared else f" of client {client}"
            tests = {"loss threshold": scores}
            if stage is None and self.shadows and self.clients.experiment.schedule.rounds:
                arguments = (federation, self.clients.experiment, self.shadows, self.seed)
                tests["likelihood ratio"] = membership_inference.likelihood_ratios(scores, samples, *arguments)
            for name, values in tests.items():
                inside, outside = values[member], values[~member]
                area = attacks.area_under_curve(inside, outside)
                rows.append(Attack(name, on, "area under the curve, members against test samples", None, area, 0.5))
                rate = attacks.true_positive_rate(inside, outside)
                rows.append(Attack(name, on, "members found with 1 % false alarms", None, rate, 0.01))
        return rows


def _recovered(views: Sequence[_View]) -> int:
    """Return the number of samples whose features can be computed from statistics."""
    recovered = 0
    for view in views:
        for c, features in features_of(view.statistics).items():
            true = torch.cat([truth.sent[truth.y == c] for truth in view.truth])
            if len(true):
                recovered += int((attacks.direction_error(features.double(), true) < EXACT).any(1).sum())
    return recovered


def _known(views: Sequence[_View]) -> float:
    """Return the share of the clients' counts that statistics state exactly; totals state none of several clients."""
    known, present = 0, 0
    for view in views:
        for truth in view.truth:
            counts = torch.bincount(truth.y, minlength=view.statistics.classes).cpu()
            present += int((counts > 0).sum())
            exact = (view.statistics.count.cpu() == counts) & (counts > 0)
            known += int(exact.sum()) if len(view.truth) == 1 else 0
    return known / max(present, 1)
