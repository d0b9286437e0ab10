"""Leave-one-client-out: one run per client, trained on the others and tested on that client."""

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
    """Train without each client in turn and test the global model on all samples of the excluded client.

    Args:
        federation: Data of the clients; a client's test samples are used only when it is excluded.
        model: Model, as in `fedhead.run`.
        method: Method, as in `fedhead.run`.
        rounds: Number of rounds per run.
        stages: Stages after the rounds.
        **settings: Further arguments of `fedhead.run`. With `out` each run has a folder in it: site0, site1 and so on.

    Returns:
        One row per excluded client: its `samples`, and the accuracy in per cent after the rounds (column `rounds`,
        if any) and after each stage, by stage name.

    Raises:
        BadInput: An argument is invalid, or arguments are incompatible.
    """
    import pandas as pd

    require("assign" not in settings, "assign: clients have other numbers where one is left out; give one model")
    out = settings.pop("out", None)
    rows: dict[str | int, dict[str, Any]] = {}
    for k in range(len(federation)):
        if len(federation.indices[k]):
            name = k if federation.client_names is None else federation.client_names[k]
            fold = federation.leave_out(k)
            folder = None if out is None else Path(out) / f"site{k}"
            result = run(fold, model, method, rounds=rounds, stages=stages, out=folder, **settings)
            assert fold.test is not None, "leave_out makes one"
            rows[name] = {"samples": len(fold.test.y), **({"rounds": result.accuracy} if rounds else {})}
            rows[name] |= {name: stage.accuracy for name, stage in result.stages.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("client")
