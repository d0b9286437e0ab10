"""Leave-one-site-out: one run per client, tested on that client's samples, which the others never saw."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.api.calibrate import calibrate
from fedhead.api.result import Result
from fedhead.api.run import run
from fedhead.calibration.collect import statistics_of
from fedhead.calibration.membership import subtract
from fedhead.calibration.statistics import merge
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import map_inputs
from fedhead.data.federation.federation import Federation
from fedhead.data.federation.preprocessing import is_fitted
from fedhead.data.inputs.arrays import Samples
from fedhead.models.split_model import SplitModel, load
from fedhead.stages import STAGES
from fedhead.stages.closed_form import ClosedFormHead

if TYPE_CHECKING:
    import pandas as pd

# Settings that need no full run.
_SAME_NUMBERS = {"seed", "device", "executor", "precision", "compile", "weights", "progress"}


@dataclass(frozen=True, repr=False)
class LeaveOneOut:
    """Accuracies on clients that were left out.

    Args:
        rows: One per client: `client`, `samples`, and the accuracy in per cent of the global model after the rounds
            (`rounds`, unless there were none) and after each stage, by its name.
    """

    rows: list[dict[str, Any]]

    @property
    def mean(self) -> dict[str, float]:
        """The mean over clients of each accuracy."""
        names = [name for name in self.rows[0] if name not in ("client", "samples")]
        return {name: fmean(row[name] for row in self.rows) for name in names}

    def frame(self) -> pd.DataFrame:
        """Return the rows as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        """Show the table, with the mean in its last line."""
        mean = {"client": "mean", "samples": "", **self.mean}
        return "\n".join(_line(row) for row in [{name: name for name in mean}, *self.rows, mean])


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{value:>10.2f}" if isinstance(value, float) else f"{value!s:>10}" for value in row.values())


def leave_one_out(
    federation: Federation,
    model: Any,
    method: Method | type[Method] | str = "fedavg",
    *,
    rounds: int = 10,
    stages: Sequence[Stage | type[Stage] | str] = (),
    **settings: Any,
) -> LeaveOneOut:
    """Train without each client in turn, and test the global model on all samples of the one that was left out.

    For heads in closed form without rounds this is a subtraction: the features are computed once, and the statistics of
    the client are taken out of the total. Their heads are those of a run without the client, to 1e-9.

    Args:
        federation: The clients' data; clients' own test samples are used for testing only where they are left out.
        model: As in `fedhead.run`.
        method: As in `fedhead.run`.
        rounds: How many rounds each run has.
        stages: What follows the rounds.
        **settings: Further arguments of `fedhead.run`. With `out` each run has its own folder there: site0, site1 and
            so on.

    Returns:
        The accuracy on each client that was left out, and their means.

    Raises:
        BadInput: Something can't be used, or not with the rest.
    """
    if "assign" in settings:
        raise BadInput("assign: clients have other numbers where one is left out; give one model")
    if not isinstance(federation, Federation):
        raise BadInput(f"federation is {type(federation).__name__}: make one, fedhead.Federation.from_arrays(x, y)")
    made = [one if isinstance(one, Stage) else STAGES.resolve(one)() for one in stages]
    clients = [k for k in range(len(federation)) if len(federation.rows[k])]
    out = settings.pop("out", None)
    alike = not rounds and out is None and settings.keys() <= _SAME_NUMBERS and not is_fitted(federation)
    alike = alike and settings.get("precision") != "bf16"  # in which statistics outside a run are not computed
    rows: list[dict[str, Any]] = []
    for k in clients:
        fold = federation.leave_out(k)
        folder = None if out is None else Path(out) / f"site{k}"
        result = run(fold, model, method, rounds=rounds, stages=made, out=folder, **settings)
        rows.append(_row(federation, k, fold, {} if not rounds else {"rounds": result.accuracy}))
        rows[-1] |= {name: stage.accuracy for name, stage in result.stages.items()}
        if alike and all(isinstance(stage, ClosedFormHead) and stage.adds_up for stage in made):
            return LeaveOneOut([*rows, *_by_subtraction(federation, clients, result, made)])
    return LeaveOneOut(rows)


def _row(federation: Federation, client: int, fold: Federation, found: dict[str, Any]) -> dict[str, Any]:
    names = federation.client_names
    assert fold.test is not None, "leave_out makes one"
    return {"client": client if names is None else names[client], "samples": len(fold.test.y), **found}


def _by_subtraction(
    federation: Federation, clients: Sequence[int], result: Result, stages: Sequence[Stage]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all clients but the first, whose run gave the model."""
    model = copy.deepcopy(result.trained.clients.task.model).cpu()
    assert result.weights is not None, "a stage that needs no rounds follows FedAvg or the like"
    load(model, result.weights.to("cpu"))
    totals = {}
    for stage in stages:
        assert isinstance(stage, ClosedFormHead), "asked only then"
        own = [_trained_on(federation, k) for k in clients]
        parts = [statistics_of(model, s.x, s.y, transform=federation.transform, kind=stage.kind) for s in own]
        totals[stage.name] = (stage, merge(parts), parts)
    for place, k in enumerate(clients[1:], 1):
        fold = federation.leave_out(k)
        assert fold.test is not None, "leave_out makes one"
        accuracies = {
            name: _accuracy(calibrate(model, subtract(total, parts[place]), stage), fold.test, fold)
            for name, (stage, total, parts) in totals.items()
        }
        yield _row(federation, k, fold, accuracies)


def _trained_on(federation: Federation, client: int) -> Samples:
    return federation.train.take(federation.rows[client])


@torch.no_grad()
def _accuracy(model: SplitModel, test: Samples, federation: Federation, chunk: int = 1024) -> float:
    """Return the accuracy of a model on test samples, in per cent."""
    plain, right = federation.transform.replace(augment="none"), 0
    for begin in range(0, len(test.y), chunk):
        x = plain(map_inputs(lambda t, at=begin: t[at : at + chunk], test.x))
        right += int((model.eval()(x).logits.argmax(1) == test.y[begin : begin + chunk]).sum())
    return 100 * right / len(test.y)
