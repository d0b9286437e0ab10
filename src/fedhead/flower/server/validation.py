"""Validation on samples of the sites: the global model by sums over samples, the sites' own models by their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, total
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.clients import Clients
from fedhead.engine.clients.evaluation import ClientTest
from fedhead.engine.clients.global_model_tests import global_predictions
from fedhead.engine.clients.server import global_model
from fedhead.engine.experiment.callbacks import VALIDATED, Watcher
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.transport import Context
from fedhead.flower.server.messaging import Answer
from fedhead.flower.site.site_metrics import reported
from fedhead.metrics.records import Row
from fedhead.metrics.registry import Metric
from fedhead.metrics.sums import metric_sums, metrics_of_sums, summable


class Validation:
    """Messages and records of the validation.

    Args:
        clients: Server-side clients.
        metrics: Metrics that sites compute.
    """

    def __init__(self, clients: Clients, metrics: Mapping[str, Metric]):
        self._clients, self._metrics, self._summed = clients, metrics, summable(metrics)

    def check(self, context: Context, experiment: Experiment) -> None:
        """Raise `BadInput` if a callback watches a metric that sites can't report."""
        known = self._summed if self._has_global_model(context) else self._metrics
        for rule in experiment.callbacks:
            watched = experiment.metrics.get(rule.metric) if isinstance(rule, Watcher) else None
            if isinstance(rule, Watcher) and watched and not watched.of_clients and rule.metric not in known:
                raise BadInput(
                    f"callback {rule.name} watches {rule.metric}, which is no sum over samples: watch one of "
                    f"{', '.join([*VALIDATED, *known])}"
                )

    def _has_global_model(self, context: Context) -> bool:
        return global_model(context.algorithm, context.server, self._clients.task) is not None

    def message(self, context: Context) -> tuple[dict[str, Tree], dict[str, Tree]]:
        """Return the tree with the global model for the sites, and the schema of the sums that they send.

        Tensors that are part of the broadcast too are sent as empty ones.
        """
        task = self._clients.task
        model = global_model(context.algorithm, context.server, task)
        if model is None:
            return {}, {}
        shared: Tree = context.server["model"] if "model" in context.algorithm.broadcast else Tree()
        sent = model.replace(
            {name: t.new_empty(0) for name, t in model.items() if name in shared and shared[name] is t}
        )
        blank = global_predictions(context.algorithm, model, task, self._clients.pool, keep_scores=True)
        return {"model": sent}, {"sums": metric_sums(blank, self._summed)} if self._summed else {}

    def row(
        self, context: Context, results: Sequence[Answer | None], metrics: Mapping[str, Metric], personal: bool
    ) -> Row:
        """Return the validation metrics that callbacks watch.

        Args:
            context: Method, states and round.
            results: Answer of each site; None for a site without validation samples or answer.
            metrics: Additional metrics of the run.
            personal: Whether the run tests the sites' own models.
        """
        entries: Row = {"accuracy": None, "test_loss": None}
        if self._has_global_model(context):
            answers = [answer for answer in results if answer is not None]
            sums = [trees["sums"] for _, trees in answers if "sums" in trees]
            entries = evaluation.summed_row(
                [(response.validations, response.correct, response.loss_sum) for response, _ in answers],
                metrics_of_sums(total(sums), self._summed) if sums else {},
            )
        tests = None
        if personal or entries["test_loss"] is None:
            each = [None if answer is None else self._client_test(answer) for answer in results]
            samples = [0 if answer is None else answer[0].validations for answer in results]
            tests = evaluation.client_tests(each, samples, {})
        return evaluation.validation_row(entries, tests, metrics)

    def _client_test(self, answer: Answer) -> ClientTest:
        response = answer[0]
        measured = reported(self._metrics, response.personal_metrics)
        return ClientTest(response.personal, response.personal_loss, measured)
