"""Methods that change from round to round, for which CUDA graphs are captured again and again."""

from __future__ import annotations

from fedhead.core.system.log import warn_once
from fedhead.executors.client.steps import PhaseRun
from fedhead.executors.stack.phase_keys import PhaseKey
from fedhead.models.module_digest import value_digest

_OFTEN = 2  # changes in a row after which there is a warning: one may be on purpose


class ChangingMethods:
    """Warns of methods whose attributes change from round to round, so that graphs are captured again each time."""

    def __init__(self) -> None:
        # by the key's work: digests of the method's attributes, and how often they have changed in a row
        self._found: dict[str, tuple[dict[str, str], int]] = {}

    def note_capture(self, phase_run: PhaseRun, key: PhaseKey) -> None:
        """Note that graphs are about to be captured for a phase.

        Args:
            phase_run: The phase.
            key: Its key.
        """
        algorithm = phase_run.step.program.algorithm
        now = {name: value_digest(value) for name, value in vars(algorithm).items()}
        before, times = self._found.get(key.work, (now, 0))
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        times = times + 1 if changed else 0
        self._found[key.work] = now, times
        if times >= _OFTEN:
            names = ", ".join(f"{type(algorithm).__name__}.{name}" for name in changed)
            warn_once(
                f"{names}: it changes from round to round, so that CUDA graphs are captured again in each, which takes "
                "time: let the server send it to the clients, as an entry of its state that `broadcast` names"
            )
