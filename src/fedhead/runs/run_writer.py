"""Writer of a run folder, the same for simulations and Flower's server."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger
from fedhead.core.tree.tree import Tree
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment
from fedhead.engine.rounds.observer import FinishedRun, Kept, Observer, Snapshot
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.loggers.base import Logger
from fedhead.metrics.records import Row
from fedhead.models.split_model import load, weights
from fedhead.recipes import components, initial_weights, inputs_record
from fedhead.recipes.component_kinds import LOGGER_KIND
from fedhead.recipes.recipe import Recipe
from fedhead.runs import python_components as python_objects
from fedhead.runs import recorded_code
from fedhead.runs.folder_lock import in_use
from fedhead.runs.python_components import Objects
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_loggers import RunLoggers, final_metrics


class RunWriter(Observer):
    """Observer that writes the files of a new or resumed run.

    The constructor checks that the run can be started or resumed. Files are written only inside `writing`.

    Args:
        recipe: Recipe of the run.
        out: Run folder.
        resume: Resume an interrupted run, if the folder holds one.
        compute: Compute options; the code of a user's executor is recorded.
        loggers: Loggers in addition to those of the recipe.
        objects: Descriptions of Python objects that a recipe can't store; None: the recipe is complete.

    Attributes:
        recipe: Recipe, whose search path includes the original location of the user's code.
        out: Path of the run folder.
        environment: Environment that a resumed run was started with; empty for a new run.
        folder: Run folder, available inside `writing`.
        result: Final metrics of a finished run; None before.
        always: Whether every round is checkpointed.

    Raises:
        BadInput: The folder holds something else, or the user's code is missing or has changed.
    """

    always: ClassVar[bool] = False

    def __init__(
        self,
        recipe: Recipe,
        out: str | Path,
        *,
        resume: bool = False,
        compute: Compute | None = None,
        objects: Objects | None = None,
        loggers: Sequence[Logger] = (),
    ):
        compute = compute or Compute()
        executor = own_executor(compute.executor, recipe)
        self.out = Path(out)
        self.objects = objects
        again = "resume with the same one" if objects is None else python_objects.GIVE_AGAIN
        self._existing = RunFolder.open(self.out) if resume and RunFolder.holds_run(self.out) else None
        if self._existing is not None:
            self._existing.check_continued_by(recipe, again)
            recipe = self._without_further_rounds(recipe, self._existing)
        recipe_loggers = LOGGER_KIND.build(recipe.loggers, recipe.folders)
        self.loggers = RunLoggers(recipe, self.out, [*recipe_loggers, *loggers])  # before the folder is created
        self.recipe = recipe
        self.environment: Mapping[str, Any] = {}
        self.result: Row | None = None
        self._executor = executor
        self._resume = resume
        if self._existing is None:
            RunFolder.refuse_taken(self.out)
            return
        python_objects.check_same(self.out, self._existing.environment().get("objects", {}), objects)
        self.result = self._existing.result() if self._existing.recipe == recipe else None
        if self.result is not None:
            return
        self.recipe = replace(recipe, folders=(*recipe.folders, *self._existing.recipe.folders))
        self.environment = self._existing.environment()
        if recipe.weights is not None and self.environment.get("weights", "") not in ("", self._weights_digest()):
            raise BadInput(f"weights: {recipe.weights} changed since {self.out} was begun: put the old file back")
        recorded = self.environment.get("components", [])
        self._executor = executor = executor or recorded_code.own_executor(recorded)
        recorded_code.check_present(self.recipe, recorded, self.out, executor)
        # Before the first checkpoint there are no results of older code.
        if trained := self._existing.checkpoint.round:
            current = components.sources(self.recipe, executor, without=self._left_out)
            lines, allow = recorded_code.changes(recorded, current), compute.allow_changed_code
            recorded_code.check_results(self.out, lines, trained, "round", more=True, allow=allow)

    def _without_further_rounds(self, recipe: Recipe, existing: RunFolder) -> Recipe:
        """Return the recipe with the rounds of the existing run if that stopped early; log a warning."""
        rounds, facts = existing.recipe.rounds, existing.checkpoint.facts() if existing.checkpoint.exists else {}
        if recipe.rounds <= rounds or facts.get("stopped") is None:
            return recipe
        logger.warning(
            "%s stopped after round %d of %d by %s: no further round is trained, and rounds stays %d; "
            "select another folder to train longer",
            *(self.out, facts["round"], rounds, facts["stopped"], rounds),
        )
        return replace(recipe, rounds=rounds)

    def _weights_digest(self) -> str | None:
        location = self.recipe.weights
        return None if location is None else initial_weights.digest(location, self.recipe.folders)

    @property
    def _left_out(self) -> set[str]:
        """Kinds of components that are Python objects, which no registry contains."""
        return python_objects.kinds(self.objects or {})

    @contextmanager
    def writing(self, facts: Mapping[str, Any], federation: Federation | None = None) -> Iterator[None]:
        """Lock the folder for writing; create it if necessary.

        Args:
            facts: Values of the environment, in addition to the sources of components.
            federation: Data whose split is stored, or compared with the stored one.
        """
        self.folder = self._existing or self._create()
        self.folder.executor = self._executor
        extended = self.folder.recipe != self.recipe
        with self.folder.locked():
            self._refuse_others(finished=self.folder.finished and not extended)
            if extended:
                self.folder.extend(self.recipe)
            if federation is not None:
                self.folder.save_split(federation)
                facts = {**facts, "inputs": inputs_record.describe(federation)}
            if self.recipe.weights is not None:
                facts = {**facts, "weights": self._weights_digest()}
            if self.objects is not None:
                facts = {**facts, "objects": self.objects}
            sources = components.sources(self.recipe, self._executor, without=self._left_out)
            self.folder.save_environment({**facts, "components": sources})
            try:
                yield
            finally:
                self.loggers.close()

    def _create(self) -> RunFolder:
        try:
            return RunFolder.create(self.out, self.recipe, self._executor)
        except BadInput as error:
            if self._resume and RunFolder.holds_run(self.out):  # created by another process meanwhile
                raise in_use(self.out, "another process began a run in it meanwhile") from error
            raise

    def _refuse_others(self, finished: bool) -> None:
        if finished or self.folder.environment() != self.environment:
            raise in_use(self.out, "another process went on in it meanwhile")

    def with_initial_weights(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the initial weights of the run, if its folder has them."""
        stored = None if self._existing is None else self._existing.initial_weights()
        if stored is None:
            return experiment
        models = [copy.deepcopy(model) for model in experiment.models]
        for model, w in zip(models, stored, strict=True):
            load(model, w)
        return replace(experiment, models=tuple(models))

    def save_initial_weights(self, experiment: Experiment) -> None:
        """Store the initial weights of models that a recipe can't describe."""
        if self.objects is not None:
            self.folder.save_initial_weights([weights(model) for model in experiment.models])

    def snapshot(self) -> Snapshot | None:
        """Load the last checkpoint; None without a checkpoint."""
        checkpoint = self.folder.rewind()
        if checkpoint is None:
            return None
        number, state, history = checkpoint
        facts = self.folder.checkpoint.facts()
        kept = None
        if (best := facts.get("kept")) is not None:
            kept_state = state.get("kept", state)  # stored once if it is the last round
            kept = Kept(best, kept_state["server"], self.clients(kept_state))
        memories, stopped = facts.get("memories", []), facts.get("stopped")
        # Repeated rounds use the same compiled steps, so the numbers stay the same.
        compiled_from = self.environment.get("compiled_from")
        return Snapshot(number, state["server"], self.clients(state), history, memories, kept, stopped, compiled_from)

    def state(self, server: Tree, clients: Mapping[int, Any]) -> Tree:
        """Return the states of server and clients in checkpoint format."""
        return Tree(server=server, clients=stored_clients(clients))

    def clients(self, state: Tree) -> dict[int, Any]:
        """Return the client states of a checkpoint, as in `Snapshot.clients`."""
        return {int(k): kept for k, kept in state["clients"].items()}

    # -- during the run -----------------------------------------------------------------------------
    def start(self, name: str, resume: Snapshot | None) -> None:
        """Record the executor."""
        compiled_from = None if resume is None else resume.compiled_from
        self.folder.save_environment({"executor": name, "compiled_from": compiled_from})

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Record a round and save its state if a checkpoint is due."""
        if snapshot.compiled_from == snapshot.round:  # before its checkpoint
            self.folder.save_environment({"compiled_from": snapshot.round})
        self.folder.record(row)
        self.save(snapshot, self.always or snapshot.round == self.recipe.rounds or snapshot.stopped is not None)

    def stop(self, snapshot: Snapshot) -> None:
        """Save the state after the last round."""
        self.save(snapshot, final=True)

    def save(self, now: Snapshot, final: bool) -> None:
        """Save the state after a round with the states of callbacks.

        Args:
            now: Snapshot of the round.
            final: Save even if no checkpoint is due.
        """
        if not self.folder.checkpoint.is_due(final):
            return
        state = self.state(now.server, now.clients)
        facts: dict[str, Any] = {"memories": now.memories} if now.memories else {}
        if now.stopped is not None:
            facts["stopped"] = now.stopped
        if now.kept is not None:
            facts["kept"] = now.kept.round
            if now.kept.round != now.round:
                state = state.replace(kept=self.state(now.kept.server, now.kept.clients))
        self.folder.checkpoint.save(now.round, state, facts, final)

    def end(self, result: FinishedRun) -> None:
        """Store the states of stages and the final metrics, which marks the run as finished."""
        if not self.recipe.rounds:  # input of the stages
            self.save(Snapshot(0, result.server, {}, []), final=True)
        if result.stages:
            self.folder.save_stages({name: stage.server for name, stage in result.stages.items()})
        self.result = final_metrics(str(self.out), self.recipe, result)
        self.folder.finish(self.result)


def stored_clients(clients: Mapping[int, Tree]) -> Tree:
    """Return the client states in checkpoint format."""
    return Tree({str(k): state for k, state in clients.items()})


def own_executor(executor: str | Executor, recipe: Recipe) -> str | None:
    """Return the name of the user's executor; None for a built-in one or an object.

    Raises:
        BadInput: There is no executor of this name.
    """
    if not isinstance(executor, str) or executor == "auto":
        return None
    select.EXECUTORS.find(executor, recipe.folders)
    return None if executor in select.BUILT_IN else executor
