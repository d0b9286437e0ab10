"""Tests of the site's own model and of the global model on the site's samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.stage import Stage
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest
from fedhead.engine.clients.global_model_tests import global_predictions
from fedhead.engine.clients.server import Downlink
from fedhead.engine.policies import reply_check
from fedhead.engine.rounds.client_model_tests import client_model_tests
from fedhead.engine.states.client_states import ClientStates
from fedhead.executors.stack.map_clients import samples_at_once
from fedhead.flower.wire.protocol import Response
from fedhead.metrics.predictions import predict
from fedhead.metrics.registry import NO_METRICS, Measured, Metric
from fedhead.metrics.sums import metric_sums, small_classes, summable


@dataclass(frozen=True)
class ModelTests:
    """Models of one exchange, tested at client k."""

    clients: Clients
    algorithm: Algorithm
    downlink: Downlink
    states: ClientStates
    round: int
    k: int
    metrics: Mapping[str, Metric]  # metrics that the site reports

    def test(self, response: Response) -> Response:
        """Return the response with the results of the site's own model on its test samples."""
        result = self._own(self.algorithm, self.metrics)
        steps = self.algorithm.steps() if isinstance(self.algorithm, Stage) else {}
        return replace(
            response,
            accuracy=result.accuracy,
            loss=finite(result.loss),
            metrics=_values(result.measured),
            steps={name: self._own(step).accuracy for name, step in steps.items()},
        )

    def test_given(self, response: Response, sent: Tree, kind: str) -> Response:
        """Return the response with the results of a given model on the site's test samples.

        Args:
            response: Response so far.
            sent: Weights of the model.
            kind: "global", or "site" for the personal model of another site.
        """
        clients, task, (indices, pool) = self.clients, self.clients.task_of(self.k), self.clients.test_indices
        model = Weights(sent.to(clients.device), getattr(sent, "buffers", ()))
        reply_check.check_finite(model, "the given model")
        pool = pool.take(torch.from_numpy(indices[self.k]).to(clients.device))
        if kind == "global":
            predictions = global_predictions(self.algorithm, model, task, pool, clients.bf16, keep_scores=True)
        else:
            scores = partial(self.algorithm.predict, model, client=self._client())
            with torch.no_grad():
                predictions = predict(scores, pool, task.classes, True, samples_at_once(pool), task.objective)
        given = evaluation.client_test(predictions, self.metrics)
        return replace(response, accuracy=given.accuracy, loss=finite(given.loss), metrics=_values(given.measured))

    def validate(self, response: Response) -> Response:
        """Return the response with the results of the site's own model on its validation samples."""
        result = self._own(self.algorithm, self.metrics, validation=True)
        values = _values(result.measured)
        return replace(response, personal=result.accuracy, personal_loss=finite(result.loss), personal_metrics=values)

    def validate_global(self, response: Response, sent: Tree, minimum: int) -> tuple[Response, dict[str, Tree]]:
        """Return the response with sums over the validation samples, and the trees with the sums of metrics.

        Args:
            response: Response so far.
            sent: Weights of the global model; an empty tensor is the broadcast's tensor of that name.
            minimum: Classes with fewer validation samples are left out of the metrics.
        """
        clients, indices = self.clients, self.clients.federation.validation
        assert indices is not None, "the site has validation samples"
        shared = self.downlink.broadcast.get("model", Tree())
        model = Weights(sent.to(clients.device), getattr(sent, "buffers", ()))
        model = model.replace({name: shared[name] for name, t in sent.items() if name in shared and not t.numel()})
        reply_check.check_finite(model, f"global model, round {self.round}")
        metrics, pool = summable(self.metrics), clients.pool.take(torch.from_numpy(indices[self.k]).to(clients.device))
        scored = any(metric.needs_scores for metric in metrics.values())
        task = clients.task_of(self.k)
        predictions = global_predictions(self.algorithm, model, task, pool, clients.bf16, scored)
        loss = finite(float(predictions.losses.sum()))
        response = replace(response, correct=predictions.correct, loss_sum=loss)
        if not metrics:
            return response, {}
        response = replace(response, left_out=small_classes(predictions, minimum))
        return response, {"sums": metric_sums(predictions, metrics, minimum)}

    def personal_model(self) -> Weights:
        """Return the site's own model."""
        with torch.no_grad():
            return self.algorithm.personal_model(self._client())

    def _client(self) -> Client:
        (job,) = self.clients.work(self.algorithm, self.downlink, self.states, self.round)
        return job.program.client(job.inputs(0))

    def _own(
        self, algorithm: Algorithm, metrics: Mapping[str, Metric] = NO_METRICS, validation: bool = False
    ) -> ClientTest:
        indices = self.clients.federation.validation
        samples = (indices, self.clients.pool) if validation and indices is not None else None
        exchange = (self.clients, algorithm, self.downlink, self.states, self.round)
        return client_model_tests(*exchange, metrics=metrics, samples=samples)[self.k]


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _values(measured: Measured) -> dict[str, float | None]:
    return {name: finite(value) for name, value in measured.values.items()}
