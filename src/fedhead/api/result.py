"""`fedhead.Result`: a run, just trained or loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedhead.algorithm.stage import Stage, bind
from fedhead.api import frames
from fedhead.api.comparison import Comparison, paired
from fedhead.api.trained import TrainedState, model_inputs
from fedhead.core import html
from fedhead.core.errors import BadInput
from fedhead.core.inputs import map_inputs
from fedhead.core.tree import Tree, Weights
from fedhead.data import labels, targets
from fedhead.data.labels import Classes
from fedhead.engine import evaluation, metric_registry
from fedhead.engine.metric_registry import MetricFunction
from fedhead.engine.metrics import Row, RunMetrics, StageResult
from fedhead.engine.predictions import Predictions, client_predictions
from fedhead.engine.rounds import FinishedRun, run_stage
from fedhead.experiment.experiment import Experiment
from fedhead.experiment.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Record:
    """What is known of a run without its weights.

    Args:
        recipe: Its settings; components that were given as objects are named.
        rows: The records of the rounds.
        stage_rows: The records of the stages, by name.
        executor: Name of the executor, or of the transport.
        preparing: Seconds spent on compiling.
        counts: Training samples by client and class; None if the run was stopped before it split its data.
        class_names: Names of the classes, if they have such.
        client_names: Names of the clients, if they have such.
        path: The run folder, if the run has one.
        state: "finished", or how far it came.
    """

    recipe: Recipe
    rows: list[Row]
    stage_rows: dict[str, Row]
    executor: str
    preparing: float = 0.0
    counts: NDArray[np.int64] | None = None
    class_names: Sequence[str] | None = None
    client_names: Sequence[str] | None = None
    path: Path | None = None
    state: str = "finished"


class Result(RunMetrics):
    """A run: what it measured, and the models that it trained.

    `fedhead.run` returns it, `fedhead.load` reads it from a run folder.

    Args:
        record: Settings and records of the run.
        trained: Returns the states of server and clients, when they are needed.

    Attributes:
        record: Settings and records of the run.
        rows: The records of the rounds, as dictionaries; see `history`.
        executor: Name of the executor, or of the transport.
        preparing: Seconds spent on compiling.
        last_rounds: Over how many of the last rounds `accuracy_mean` is taken.
    """

    def __init__(self, record: Record, trained: Callable[[], TrainedState]):
        self.record = record
        self.rows, self.executor, self.preparing = record.rows, record.executor, record.preparing
        self.last_rounds = record.recipe.last_rounds
        self._open = trained

    @classmethod
    def of(cls, finished: FinishedRun, experiment: Experiment, path: Path | None = None) -> Self:
        """Return the result of a run that was just finished.

        Args:
            finished: The run.
            experiment: What was run.
            path: The run folder, if there is one.

        Returns:
            The result.
        """
        transport = finished.transport
        clients = transport.clients
        federation = clients.federation
        record = Record(
            recipe=experiment.recipe,
            rows=finished.rows,
            stage_rows=finished.stage_rows,
            executor=finished.executor,
            preparing=finished.preparing,
            counts=federation.counts(),
            class_names=federation.names,
            client_names=federation.client_names,
            path=path,
        )
        algorithms = {stage.name: stage for stage in bind(experiment.stages, experiment.method)}
        trained = TrainedState(
            clients, transport.server, transport.states, finished.stages, algorithms, lambda: transport
        )
        return cls(record, lambda: trained)

    # -- records ----------------------------------------------------------------------------------
    @property
    def stage_rows(self) -> dict[str, Row]:
        """The records of the stages, by name."""
        return self.record.stage_rows

    @property
    def recipe(self) -> Recipe:
        """The settings of the run."""
        return self.record.recipe

    @property
    def path(self) -> Path | None:
        """The run folder, if the run has one."""
        return self.record.path

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.record.state == "finished"

    @property
    def history(self) -> pd.DataFrame:
        """The numbers of every round, one line per round."""
        return frames.history(self.rows)

    @property
    def clients(self) -> pd.DataFrame:
        """One line per client: training samples, and accuracies of its own model after the rounds and each stage."""
        record = self.record
        return frames.clients(record.rows, record.stage_rows, record.counts, record.client_names)

    @property
    def client_history(self) -> pd.DataFrame:
        """Accuracies of the clients' own models, one line per evaluated round and one column per client."""
        return frames.client_history(self.rows, self.record.client_names)

    @property
    def partition(self) -> pd.DataFrame:
        """Training samples by client and class."""
        if self.record.counts is None:
            raise BadInput(f"{self.path} was stopped before its data was split: resume it first")
        return frames.counts(self.record.counts, self.record.client_names, self.record.class_names)

    def plot(self, metric: str = "accuracy") -> Figure:
        """Plot a column of `history` over the rounds, with the stages as lines.

        Args:
            metric: The column.

        Returns:
            A matplotlib figure, which notebooks show.

        Raises:
            BadInput: If no round has such a number.
        """
        from fedhead.report import plots

        frame = self.history
        if metric not in frame or frame[metric].isna().all():
            known = ", ".join(name for name in frame.columns if not frame[name].isna().all())
            raise BadInput(f"plot: no round has {metric!r}; there is {known or 'nothing yet'}")
        values = frame[metric].dropna()
        after = {name: row[metric] for name, row in self.stage_rows.items() if row.get(metric) is not None}
        return plots.curve(values.index.tolist(), values.tolist(), metric, after)

    def compare(self, other: Result, level: float = 0.95) -> Comparison:
        """Compare the clients' own accuracies with those of another run, client by client.

        Results of several seeds are compared by `fedhead.load_all(…).compare(…)`.

        Args:
            other: Another run with the same clients.
            level: Level of the interval of the mean difference.

        Returns:
            The differences, this run minus the other.

        Raises:
            BadInput: If no client was tested in both.
        """
        found = []
        for result in (self, other):
            frame = result.clients
            if "accuracy" not in frame:
                raise BadInput(
                    f"compare: {result!r} has no test samples of single clients (client_test=0.2); compare several "
                    "seeds with fedhead.load_all(…).compare(…)"
                )
            found.append({str(name): float(value) for name, value in frame["accuracy"].items()})
        return paired("personal accuracy", "client", found[0], found[1], level)

    # -- states and models ------------------------------------------------------------------------
    @cached_property
    def trained(self) -> TrainedState:
        """The states of server and clients; a run folder is opened when they are first needed."""
        return self._open()

    @property
    def server(self) -> Tree:
        """The server's final state."""
        return self.trained.server

    @property
    def states(self) -> dict[int, Tree]:
        """What each client that took part has kept."""
        kept = self.trained.states
        return {} if kept is None else kept.kept

    @property
    def weights(self) -> Weights | None:
        """The global model's weights, where the method has one."""
        clients = self.trained.clients
        return clients.method.global_model(self.server, clients.task)

    @property
    def stages(self) -> dict[str, StageResult]:
        """The results of the stages, by name."""
        return self.trained.stages

    def calibrate(self, stage: Stage) -> StageResult:
        """Run a stage, such as `CCVR()`, on the trained federation; the run itself stays as it is.

        Args:
            stage: The stage.

        Returns:
            Its accuracies, its weights and the states that it left.

        Raises:
            BadInput: If the stage does not go with the method, the models or the transport.
        """
        return run_stage(self.trained.with_data(), stage)

    def module(self, client: int | None = None, stage: str | None = None) -> nn.Module:
        """Return a module with the trained weights, in evaluation mode.

        It is of the type that `fedhead.split` was given, with the same names in its state dict. A built-in model is a
        `torch.nn.Sequential` of its parts. Inputs are not normalized in it; see `export`.

        Args:
            client: The client whose own model is asked for; None: the global model.
            stage: The stage after which it is taken, such as "ccvr"; None: after the last round.

        Returns:
            The module, on the CPU.

        Raises:
            BadInput: If there is no such model.
        """
        return self.trained.after(stage, client).module(client)

    def scores(self, x: Any, client: int | None = None, stage: str | None = None) -> NDArray[np.float32]:
        """Return the scores of the classes for samples; the highest is the prediction. See `predict` for objectives.

        Args:
            x: Samples like those that the federation was made of.
            client: The client whose own model predicts; None: the global model.
            stage: The stage after which it predicts; None: after the last round.

        Returns:
            Scores, [N, C]: logits, unless the method has its own rule. Of a binary objective the logit of the second
            class, [N, 1]; of a regression the numbers, [N, T].
        """
        trained = self.trained
        samples = model_inputs(trained.clients.federation, x)
        return np.asarray(trained.after(stage, client).scores(samples, client).cpu().numpy())

    def predict(self, x: Any, client: int | None = None, stage: str | None = None) -> NDArray[Any]:
        """Return what is predicted for samples: the class as an index 0 … C-1, or what the objective has in its place.

        Args:
            x: Samples like those that the federation was made of.
            client: The client whose own model predicts; None: the global model.
            stage: The stage after which it predicts; None: after the last round.

        Returns:
            Indices of classes, [N]; `record.class_names` has their names. Of several labels 0 or 1 each, [N, L]; of a
            regression numbers, [N], or [N, T] where there are several per sample.
        """
        objective = self.trained.clients.task.objective
        found = objective.predictions(objective.scores(torch.from_numpy(self.scores(x, client, stage)))).numpy()
        return found[:, 0] if objective.name == "regression" and found.shape[1] == 1 else found

    def evaluate(
        self,
        x: Any,
        y: Any,
        metrics: Sequence[str | MetricFunction] = (),
        client: int | None = None,
        stage: str | None = None,
    ) -> dict[str, Any]:
        """Test a model on samples.

        Args:
            x: Samples like those that the federation was made of.
            y: Their labels.
            metrics: Further metrics by name, or functions, as `fedhead.run` takes them.
            client: The client whose own model is tested; None: the global model.
            stage: The stage after which it is tested; None: after the last round.

        Returns:
            The accuracy in per cent (None of a regression), the mean loss and the metrics, by name; NaN for a metric
            that has no value for these samples.

        Raises:
            BadInput: If x or y can't be used, or a metric is unknown or of the clients' accuracies.
        """
        found = metric_registry.find(metrics, objective=self.trained.clients.task.objective.name)
        if several := [name for name, one in found.items() if one.of_clients]:
            raise BadInput(f"metric {several[0]} is of all clients' accuracies: one model on given samples has none")
        tested = self._tested(x, y, client, stage)
        values = metric_registry.measure(found, tested).values
        return {"accuracy": evaluation.accuracy(tested), "loss": evaluation.loss(tested), **values}

    def confusion(
        self, x: Any = None, y: Any = None, client: int | None = None, stage: str | None = None
    ) -> pd.DataFrame:
        """Count samples by class (lines) and predicted class (columns).

        Args:
            x: Samples; None: the global test set.
            y: Their labels.
            client: The client whose own model predicts; None: the global model.
            stage: The stage after which it predicts; None: after the last round.

        Returns:
            The confusion matrix.

        Raises:
            BadInput: If there is no test set.
        """
        if x is None:
            held = self.trained.with_data().test
            if held is None:
                raise BadInput("confusion: the federation has no global test set: give x and y")
            x, y = map_inputs(lambda t: t.cpu(), held.x), held.y.cpu()
        return frames.confusion(self._tested(x, y, client, stage).confusion, self.record.class_names)

    def _tested(self, x: Any, y: Any, client: int | None, stage: str | None) -> Predictions:
        trained = self.trained
        federation = trained.clients.federation
        if federation.has_classes:
            read = labels.read(y, "y")
            true = Classes.known(read, federation.names, federation.classes).encode(read, "y")
        else:
            true = targets.read(y, federation.objective)
            targets.columns([true], None, federation.classes, ["y"])
        scores = torch.from_numpy(self.scores(x, client, stage))
        if len(true) != len(scores):
            raise BadInput(f"x has {len(scores)} samples but y has {len(true)} labels: they must match")
        return client_predictions(scores, true, federation.classes, True, trained.clients.task.objective)

    def export(
        self,
        path: str | PathLike[str],
        *,
        normalize: bool = False,
        client: int | None = None,
        stage: str | None = None,
    ) -> Path:
        """Write a trained model to a file that other programs read, and check it against `scores`.

        Args:
            path: The file; its suffix selects the format: .onnx (needs `fedhead[export]`), .pt2 (`torch.export`), both
                with any number of samples per batch, or .safetensors (the state dict of `module`).
            normalize: Whether the file takes samples as they are stored (images as bytes), and normalizes them itself;
                otherwise it takes normalized ones.
            client: The client whose own model is written; None: the global model.
            stage: The stage after which it is taken, such as "ccvr"; None: after the last round.

        Returns:
            The path.

        Raises:
            BadInput: If the format can't express the model, a package is missing, or there is no such model.
        """
        from fedhead.api.export import export

        export(self.trained.after(stage, client), Path(path), client, normalize)
        return Path(path)

    # -- how it is shown --------------------------------------------------------------------------
    def __repr__(self) -> str:
        """Say how well it went; None for what there is no test set for."""
        shown = {"accuracy": self.accuracy, "personal": self.personal}
        if self.recipe.objective == "regression":
            shown = {"test_loss": self.test_loss, "personal_loss": self._last("personal_loss")}
        parts = [f"{name}={_rounded(value)}" for name, value in shown.items()]
        after = {name: _rounded(row.get("accuracy")) for name, row in self.stage_rows.items()}
        parts += [f"stages={after}", f"rounds={len(self.rows)}", f"executor={self.executor!r}"]
        parts += [] if self.path is None else [f"path={str(self.path)!r}"]
        parts += [] if self.finished else [self.record.state]
        return f"Result({', '.join(parts)})"

    def _repr_html_(self) -> str:
        recipe = self.recipe
        title = (
            f"{recipe.method} on {recipe.dataset}, {recipe.partition}, {recipe.clients} clients: {self.record.state}"
        )
        body: list[list[Any]] = [[f"round {len(self.rows)}", _rounded(self.accuracy), _rounded(self.personal)]]
        body += [
            [name, _rounded(r.get("accuracy")), _rounded(r.get("personal"))] for name, r in self.stage_rows.items()
        ]
        return html.table(title, ["after", "accuracy (%)", "personal (%)"], body)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
