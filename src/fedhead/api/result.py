"""`fedhead.Result`: a run, trained or loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedhead.algorithm.stage import Stage
from fedhead.api import frames
from fedhead.api.record import RecordedResult
from fedhead.api.trained import TrainedState, model_inputs
from fedhead.core.components.registry import instance
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.data.inputs import labels, targets
from fedhead.data.inputs.labels import Classes
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.metrics import registry
from fedhead.metrics.predictions import Predictions, client_predictions
from fedhead.metrics.records import StageResult
from fedhead.metrics.registry import MetricFunction
from fedhead.recipes.recipe import Recipe
from fedhead.runs.read_runs import Run
from fedhead.runs.run_loggers import final_metrics
from fedhead.stages import STAGES

if TYPE_CHECKING:
    import pandas as pd


class Result(RecordedResult):
    """Result of a run: its records and trained models.

    Returned by `fedhead.run` and `fedhead.load`.

    Args:
        record: Recipe and records of the run.
        trained: Returns the states of server and clients; called lazily.

    Attributes:
        record: Recipe and records of the run.
        rows: Records of the rounds, as dictionaries; see `history`.
        executor: Name of the executor, or of the transport.
        compile_seconds: Seconds spent waiting for compilation.
        compiled_from: First round with compiled steps; None: no compilation.
        last_rounds: Number of last rounds in `accuracy_mean`.
    """

    def __init__(self, record: Run, trained: Callable[[], TrainedState]):
        super().__init__(record)
        self._open = trained

    @classmethod
    def of(cls, finished: FinishedRun, recipe: Recipe, objects: Mapping[str, str], path: Path | None = None) -> Self:
        """Create the result of a finished run.

        Args:
            finished: Finished run.
            recipe: Recipe of the run.
            objects: Descriptions of Python objects that the recipe can't store.
            path: Run folder, if any.

        Returns:
            The result.
        """
        transport = finished.transport
        clients = transport.clients
        federation = clients.federation
        record = Run(
            path,
            recipe,
            finished.rows,
            {**final_metrics(str(path or ""), recipe, finished), "stages": finished.stage_rows},
            counts=federation.counts(),
            class_names=None if federation.class_names is None else tuple(federation.class_names),
            client_names=None if federation.client_names is None else tuple(federation.client_names),
            split=federation.fingerprint(),
            environment={
                "executor": finished.executor,
                "compiled_from": finished.compiled_from,
                "objects": dict(objects),
            },
        )
        algorithms = {stage.name: stage for stage in transport.experiment.stages}
        trained = TrainedState(
            clients, transport.server, transport.states, transport.round, finished.stages, algorithms, lambda: transport
        )
        return cls(record, lambda: trained)

    # -- states and models ------------------------------------------------------------------------
    @cached_property
    def trained(self) -> TrainedState:
        """States of server and clients, loaded lazily from a run folder."""
        return self._open()

    @property
    def server(self) -> Tree:
        """Final server state."""
        return self.trained.server

    @property
    def states(self) -> dict[int, Tree]:
        """States of the clients that participated."""
        kept = self.trained.states
        return {} if kept is None else dict(kept.kept)

    @property
    def weights(self) -> Weights | None:
        """Weights of the global model, if the method has one."""
        clients = self.trained.clients
        return global_model(clients.method, self.server, clients.task)

    @property
    def stages(self) -> dict[str, StageResult]:
        """Results by stage name."""
        return self.trained.stages

    def calibrate(self, stage: str | Stage | type[Stage]) -> StageResult:
        """Run a stage, such as `CCVR()`, on the trained federation.

        `module`, `predict`, `export` and the like take its model by the stage's name, such as `module(stage="ccvr")`. A
        stage of the same name is replaced in this result; records and run folder stay as they are.

        Args:
            stage: Stage, its class, or its recipe text, such as "ridge(alpha=0.1)".

        Returns:
            The accuracies, weights and states after the stage.

        Raises:
            BadInput: If the stage is incompatible with the method, the models or the transport.
        """
        return self.trained.run_stage(instance(STAGES, stage, Stage))

    def transform(self, x: Any) -> Inputs:
        """Return the model inputs of samples: `result.module()(result.transform(x))`.

        Gaps of a table are filled. Bytes are divided by 255, then the mean is subtracted and the result divided by the
        deviation, per channel. The run folder has both in `environment.json`, under `inputs`.

        Args:
            x: Samples in the format of the federation, as for `predict`: a data frame for a table.

        Returns:
            Normalized inputs: a tensor, or tensors by name.
        """
        federation = self.trained.clients.federation
        inputs: Any = model_inputs(federation, x)
        return federation.transform(inputs)

    def module(self, client: int | None = None, stage: str | None = None) -> nn.Module:
        """Return a module with the trained weights, in evaluation mode.

        It has the type and the state dict names of the module passed to `fedhead.split`. A built-in model is a
        `torch.nn.Sequential` of its parts. The module does not normalize: pass `result.transform(x)` for stored samples
        x, or use `export` with `normalize=True`. The default normalization of byte images is `(x / 255 - 0.5) / 0.5`,
        from -1 to 1, not `x / 255`.

        Args:
            client: Client whose personal model is returned; None: the global model.
            stage: Stage after which the model is taken, such as "ccvr"; None: after the last round.

        Returns:
            The module, on the CPU.

        Raises:
            BadInput: If there is no such model.
        """
        return self.trained.after(stage, client).module(client)

    def scores(self, x: Any, client: int | None = None, stage: str | None = None) -> NDArray[np.float32]:
        """Return the class scores of samples; the highest is the prediction. See `predict` for objectives.

        Args:
            x: Samples in the format of the federation. Missing values (NaN) of a table are filled with the means of the
                training data if the federation was loaded with missing="mean".
            client: Client whose personal model predicts; None: the global model.
            stage: Stage after which the model predicts; None: after the last round.

        Returns:
            Scores, [N, C]: logits, unless the method has its own rule. A binary objective has the logit of the second
            class, [N, 1]; a regression the predicted numbers, [N, T].
        """
        trained = self.trained
        samples = model_inputs(trained.clients.federation, x)
        return np.asarray(trained.after(stage, client).scores(samples, client).cpu().numpy())

    def predict(self, x: Any, client: int | None = None, stage: str | None = None) -> NDArray[Any]:
        """Return the predictions for samples: class indices 0 … C-1, or labels or numbers for other objectives.

        Args:
            x: Samples in the format of the federation. Missing values (NaN) of a table are filled with the means of the
                training data if the federation was loaded with missing="mean".
            client: Client whose personal model predicts; None: the global model.
            stage: Stage after which the model predicts; None: after the last round.

        Returns:
            Class indices, [N]; `class_names` has their names. A multilabel objective has 0 or 1 per label,
            [N, L]; a regression has numbers, [N], or [N, T] for several targets.
        """
        objective = self.trained.clients.task.objective
        predictions = objective.predictions(objective.scores(torch.from_numpy(self.scores(x, client, stage)))).numpy()
        return predictions[:, 0] if objective.name == "regression" and predictions.shape[1] == 1 else predictions

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
            x: Samples in the format of the federation.
            y: Labels.
            metrics: Further metrics: names or functions, as in `fedhead.run`.
            client: Client whose personal model is tested; None: the global model.
            stage: Stage after which the model is tested; None: after the last round.

        Returns:
            The accuracy in per cent (None for a regression), the mean loss and the metrics, by name; NaN for an
            undefined metric.

        Raises:
            BadInput: If x or y is invalid, or a metric is unknown or needs the clients' accuracies.
        """
        available = registry.find(metrics, objective=self.trained.clients.task.objective.name)
        if several := [name for name, metric in available.items() if metric.of_clients]:
            raise BadInput(f"metric {several[0]} is of all clients' accuracies: one model on given samples has none")
        tested = self._tested(x, y, client, stage)
        values = registry.measure(available, tested).values
        return {"accuracy": evaluation.accuracy(tested), "loss": evaluation.loss(tested), **values}

    def confusion(
        self, x: Any = None, y: Any = None, client: int | None = None, stage: str | None = None
    ) -> pd.DataFrame:
        """Count samples by class (rows) and predicted class (columns).

        Args:
            x: Samples; None: the global test set.
            y: Labels.
            client: Client whose personal model predicts; None: the global model.
            stage: Stage after which the model predicts; None: after the last round.

        Returns:
            The confusion matrix.

        Raises:
            BadInput: If there is no test set.
        """
        if x is None:
            test = self.trained.with_data().clients.federation.test
            if test is None:
                raise BadInput("confusion: the federation has no global test set: give x and y")
            x, y = test.x, test.y
        return frames.confusion(self._tested(x, y, client, stage).confusion, self.record.class_names)

    def _tested(self, x: Any, y: Any, client: int | None, stage: str | None) -> Predictions:
        trained = self.trained
        federation = trained.clients.federation
        if federation.has_classes:
            read = labels.read(y, "y")
            true = Classes.known(read, federation.class_names, federation.classes).encode(read, "y")
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
        """Export a trained model to a file, and check the file against `scores`.

        Args:
            path: Output file; its suffix selects the format: .onnx (needs `fedhead[export]`), .pt2 (`torch.export`),
                both with any batch size, or .safetensors (the state dict of `module`).
            normalize: Whether the exported model takes samples as they are (images as bytes, rows of a table with NaN
                for missing values) and fills and normalizes them; otherwise it takes normalized ones, like `module`.
                The metadata of an .onnx file has the columns of its rows, the classes, the run, the stage, the version
                of fedhead and the kind of its scores.
            client: Client whose personal model is exported; None: the global model.
            stage: Stage after which the model is taken, such as "ccvr"; None: after the last round.

        Returns:
            The path.

        Raises:
            BadInput: If the format can't express the model, a package is missing, or there is no such model.
        """
        from fedhead.api.export import export

        run = self.record.environment.get("experiment") or (self.path.name if self.path else "")
        export(self.trained.after(stage, client), Path(path), client, normalize, run)
        return Path(path)
