"""`fedhead.Result`: a run, just trained or loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from fedhead.core.tree.inputs import map_inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.data.inputs import labels, targets
from fedhead.data.inputs.labels import Classes
from fedhead.data.transforms.named_transforms import AnyTransform
from fedhead.engine.clients import evaluation
from fedhead.engine.clients.server import global_model
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.engine.rounds.rounds import run_stage
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
    """A run: what it measured, and the models that it trained.

    `fedhead.run` returns it, `fedhead.load` reads it from a run folder.

    Args:
        record: Settings and records of the run.
        trained: Returns the states of server and clients, when they are needed.

    Attributes:
        record: Settings and records of the run.
        rows: The records of the rounds, as dictionaries; see `history`.
        executor: Name of the executor, or of the transport.
        preparing: Seconds that training waited for compiling.
        compiled_from: From which round on the steps were compiled; None: they never were.
        last_rounds: Over how many of the last rounds `accuracy_mean` is taken.
    """

    def __init__(self, record: Run, trained: Callable[[], TrainedState]):
        super().__init__(record)
        self._open = trained

    @classmethod
    def of(cls, finished: FinishedRun, recipe: Recipe, path: Path | None = None) -> Self:
        """Return the result of a run that was just finished.

        Args:
            finished: The run.
            recipe: What was run.
            path: The run folder, if there is one.

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
            class_names=None if federation.names is None else tuple(federation.names),
            client_names=None if federation.client_names is None else tuple(federation.client_names),
            split=federation.fingerprint(),
            environment={"executor": finished.executor, "compiled_from": finished.compiled_from},
        )
        algorithms = {stage.name: stage for stage in transport.experiment.stages}
        trained = TrainedState(
            clients, transport.server, transport.states, transport.round, finished.stages, algorithms, lambda: transport
        )
        return cls(record, lambda: trained)

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
        """The state of each client that took part."""
        kept = self.trained.states
        return {} if kept is None else dict(kept.kept)

    @property
    def weights(self) -> Weights | None:
        """The global model's weights, where the method has one."""
        clients = self.trained.clients
        return global_model(clients.method, self.server, clients.task)

    @property
    def stages(self) -> dict[str, StageResult]:
        """The results of the stages, by name."""
        return self.trained.stages

    def calibrate(self, stage: str | Stage | type[Stage]) -> StageResult:
        """Run a stage, such as `CCVR()`, on the trained federation; the run itself stays as it is.

        Args:
            stage: The stage, its class, or its name as in a recipe, such as "ridge(alpha=0.1)".

        Returns:
            Its accuracies, its weights and the states that it left.

        Raises:
            BadInput: If the stage does not go with the method, the models or the transport.
        """
        return run_stage(self.trained.with_data(), instance(STAGES, stage, Stage))

    @property
    def transform(self) -> AnyTransform:
        """The preprocessing of stored samples before models see them: `result.module()(result.transform(x))`.

        Bytes are divided by 255, then the mean is subtracted and the result divided by the deviation, per channel
        (`transform.mean`, `transform.std`). The run folder has both in `environment.json`, under `inputs`.
        """
        return self.trained.clients.federation.transform

    def module(self, client: int | None = None, stage: str | None = None) -> nn.Module:
        """Return a module with the trained weights, in evaluation mode.

        It is of the type that `fedhead.split` was given, with the same names in its state dict. A built-in model is a
        `torch.nn.Sequential` of its parts. It does not normalize: give it `result.transform(x)` for samples x as the
        federation stores them, or `export` it with `normalize=True`. Images of bytes that came without a normalization
        were trained on as `(x / 255 - 0.5) / 0.5`, from -1 to 1, and not as `x / 255`.

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
            x: Samples like those that the federation was made of. Missing values (NaN) of a table are filled with the
                training data's means where the federation was made with missing="mean".
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
            x: Samples like those that the federation was made of. Missing values (NaN) of a table are filled with the
                training data's means where the federation was made with missing="mean".
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
        found = registry.find(metrics, objective=self.trained.clients.task.objective.name)
        if several := [name for name, one in found.items() if one.of_clients]:
            raise BadInput(f"metric {several[0]} is of all clients' accuracies: one model on given samples has none")
        tested = self._tested(x, y, client, stage)
        values = registry.measure(found, tested).values
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
                otherwise it takes normalized ones, as `module` does.
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
