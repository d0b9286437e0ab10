"""One run in its folder, from opening it to its result: a simulation and Flower's server leave the same files."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fedhead.core.system.errors import BadInput
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
from fedhead.recipes.parts import LOGGER_PART
from fedhead.recipes.recipe import Recipe
from fedhead.runs import python_components as python_objects
from fedhead.runs import recorded_code
from fedhead.runs.folder_lock import in_use
from fedhead.runs.python_components import Objects
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_loggers import RunLoggers, final_metrics


class RunWriter(Observer):
    """A run that is begun in a new folder, or resumed in its own; the observer that writes its files.

    Making one opens the folder and refuses what can't be begun or resumed there; nothing is written before `writing`.

    Args:
        recipe: What is run.
        out: The run folder.
        resume: Continue the run that was stopped there, if there is one.
        compute: Its executor may be the user's own, whose code is recorded.
        loggers: Loggers besides those of the recipe.
        objects: What was given in Python and no recipe can hold; None: the recipe says all.

    Attributes:
        recipe: The recipe, which finds the user's own code also where it was when the run began.
        out: The run folder's path.
        environment: What the run that is resumed was begun with; empty for a new one.
        folder: The run folder, once `writing` has opened it.
        result: The final metrics once the run is finished; None before.
        always: Whether there is a checkpoint of every round.

    Raises:
        BadInput: The folder holds something else, or the run's own code is missing or has changed.
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
        made = LOGGER_PART.build(recipe.loggers, recipe.folders)
        self.loggers = RunLoggers(recipe, self.out, [*made, *loggers])  # refuses before there is a folder
        self.recipe = recipe
        self.environment: Mapping[str, Any] = {}
        self.result: Row | None = None
        self._existing: RunFolder | None = None
        self._executor = executor
        self._resume = resume
        if not (resume and RunFolder.holds_run(self.out)):
            RunFolder.refuse_taken(self.out)
            return
        again = "resume with the same one" if objects is None else python_objects.GIVE_AGAIN
        self._existing = RunFolder.open(self.out)
        self._existing.check_continued_by(recipe, again)
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
        # before the first checkpoint there are no results that could be mixed
        if trained := self._existing.checkpoint.round:
            current = components.sources(self.recipe, executor, without=self._left_out)
            lines, allow = recorded_code.changes(recorded, current), compute.allow_changed_code
            recorded_code.check_results(self.out, lines, trained, "round", more=True, allow=allow)

    def _weights_digest(self) -> str | None:
        found = self.recipe.weights
        return None if found is None else initial_weights.digest(found, self.recipe.folders)

    @property
    def _left_out(self) -> set[str]:
        """The kinds of components that are objects, which no registry knows."""
        return python_objects.kinds(self.objects or {})

    @contextmanager
    def writing(self, facts: Mapping[str, Any], federation: Federation | None = None) -> Iterator[None]:
        """Hold the folder for writing, creating it if need be.

        Args:
            facts: What the environment records, besides where the components come from.
            federation: The data whose split is stored, or compared with the stored one.
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
            if self._resume and RunFolder.holds_run(self.out):  # it held none when this run looked for one to resume
                raise in_use(self.out, "another process began a run in it meanwhile") from error
            raise

    def _refuse_others(self, finished: bool) -> None:
        if finished or self.folder.environment() != self.environment:
            raise in_use(self.out, "another process went on in it meanwhile")

    def with_initial_weights(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the first weights that the run was begun with, where its folder holds them."""
        stored = None if self._existing is None else self._existing.initial_weights()
        if stored is None:
            return experiment
        models = [copy.deepcopy(model) for model in experiment.models]
        for model, w in zip(models, stored, strict=True):
            load(model, w)
        return replace(experiment, models=tuple(models))

    def save_initial_weights(self, experiment: Experiment) -> None:
        """Store the first weights of models that no recipe describes."""
        if self.objects is not None:
            self.folder.save_initial_weights([weights(model) for model in experiment.models])

    def snapshot(self) -> Snapshot | None:
        """Go back to the last checkpoint; None if there is none yet."""
        found = self.folder.rewind()
        if found is None:
            return None
        number, state, history = found
        facts = self.folder.checkpoint.facts()
        kept = None
        if (best := facts.get("kept")) is not None:
            held = state.get("kept", state)  # where the kept round is the last one, it is stored once
            kept = Kept(best, held["server"], self.clients(held))
        memories, stopped = facts.get("memories", []), facts.get("stopped")
        # a run that was stopped goes on as it would have, also if it has to repeat rounds
        compiled_from = self.environment.get("compiled_from")
        return Snapshot(number, state["server"], self.clients(state), history, memories, kept, stopped, compiled_from)

    def state(self, server: Tree, clients: Mapping[int, Any]) -> Tree:
        """Return the states of server and clients as a checkpoint holds them."""
        return Tree(server=server, clients=stored_clients(clients))

    def clients(self, state: Tree) -> dict[int, Any]:
        """Return what `Snapshot.clients` holds, from a checkpoint's state."""
        return {int(k): kept for k, kept in state["clients"].items()}

    # -- while the run goes on ----------------------------------------------------------------------
    def start(self, name: str, resume: Snapshot | None) -> None:
        """Record the executor."""
        compiled_from = None if resume is None else resume.compiled_from
        self.folder.save_environment({"executor": name, "compiled_from": compiled_from})

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Record a round, and save its state if the last checkpoint is long enough ago."""
        if snapshot.compiled_from == snapshot.round:  # before there is a checkpoint of it
            self.folder.save_environment({"compiled_from": snapshot.round})
        self.folder.record(row)
        self.save(snapshot, self.always or snapshot.round == self.recipe.rounds or snapshot.stopped is not None)

    def stop(self, snapshot: Snapshot) -> None:
        """Save the state after the last round."""
        self.save(snapshot, final=True)

    def save(self, now: Snapshot, final: bool) -> None:
        """Save the state after a round with what the callbacks remember and keep.

        Args:
            now: The round.
            final: Whether to save it however long ago the last checkpoint is.
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
                state = state.replace(kept=Tree(server=now.kept.server, clients=stored_clients(now.kept.clients)))
        self.folder.checkpoint.save(now.round, state, facts, final)

    def end(self, result: FinishedRun) -> None:
        """Store the stages' states and the final metrics; from then on the run is finished."""
        if not self.recipe.rounds:  # what its stages started from
            self.save(Snapshot(0, result.server, {}, []), final=True)
        if result.stages:
            self.folder.save_stages({name: stage.server for name, stage in result.stages.items()})
        self.result = final_metrics(str(self.out), self.recipe, result)
        self.folder.finish(self.result)


def stored_clients(clients: Mapping[int, Tree]) -> Tree:
    """Return the clients' states as a checkpoint holds them."""
    return Tree({str(k): state for k, state in clients.items()})


def own_executor(asked: str | Executor, recipe: Recipe) -> str | None:
    """Return the name of the user's own executor; None: it is a built-in one, or an object.

    Raises:
        BadInput: There is no executor of this name.
    """
    if not isinstance(asked, str) or asked == "auto":
        return None
    select.EXECUTORS.find(asked, recipe.folders)
    return None if asked in select.BUILT_IN else asked
