"""Leave-one-site-out: one run per client, tested on that client's samples, which the others never saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.api.run import run
from fedhead.core.system.errors import require
from fedhead.data.federation.federation import Federation

if TYPE_CHECKING:
    import pandas as pd


def leave_one_out(
    federation: Federation,
    model: Any,
    method: Method | type[Method] | str = "fedavg",
    *,
    rounds: int = 10,
    stages: Sequence[Stage | type[Stage] | str] = (),
    **settings: Any,
) -> pd.DataFrame:
    """Train without each client in turn, and test the global model on all samples of the one that was left out.

    Args:
        federation: The clients' data; clients' own test samples are used for testing only where they are left out.
        model: As in `fedhead.run`.
        method: As in `fedhead.run`.
        rounds: How many rounds each run has.
        stages: What follows the rounds.
        **settings: Further arguments of `fedhead.run`. With `out` each run has its own folder there: site0, site1 and
            so on.

    Returns:
        One row per client that was left out: its `samples`, and the accuracy in per cent after the rounds (`rounds`,
        unless there were none) and after each stage, by its name.

    Raises:
        BadInput: Something can't be used, or not with the rest.
    """
    import pandas as pd

    require("assign" not in settings, "assign: clients have other numbers where one is left out; give one model")
    out = settings.pop("out", None)
    rows: dict[str | int, dict[str, Any]] = {}
    for k in range(len(federation)):
        if len(federation.rows[k]):
            name = k if federation.client_names is None else federation.client_names[k]
            fold = federation.leave_out(k)
            folder = None if out is None else Path(out) / f"site{k}"
            result = run(fold, model, method, rounds=rounds, stages=stages, out=folder, **settings)
            assert fold.test is not None, "leave_out makes one"
            rows[name] = {"samples": len(fold.test.y), **({"rounds": result.accuracy} if rounds else {})}
            rows[name] |= {stage: found.accuracy for stage, found in result.stages.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("client")
