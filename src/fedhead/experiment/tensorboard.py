"""Optional logging to TensorBoard, beside the run folder's own metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput

_CURVES = ("accuracy", "personal", "lr", "bytes_up", "bytes_down")


def require() -> None:
    """Raise `BadInput` if TensorBoard is not installed; called before there is a run folder."""
    try:
        import torch.utils.tensorboard  # noqa: F401 (only to fail early if it is missing)
    except ImportError as error:
        raise BadInput("--tensorboard needs TensorBoard: install it with pip install 'fedhead[tensorboard]'") from error


class Board:
    """Writes a run's curves into the `tensorboard` folder of its run folder."""

    def __init__(self, run: Path, before: Iterable[Mapping[str, Any]] = ()):
        require()
        from torch.utils.tensorboard import SummaryWriter

        # purge: curves of rounds that were cut from the metrics on resuming are hidden too
        last = max((row["round"] for row in before), default=0)
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=last + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a round's metrics."""
        for name in _CURVES:
            if row.get(name) is not None:
                self._writer.add_scalar(name, row[name], row["round"])

    def close(self) -> None:
        """Write out what is pending."""
        self._writer.close()
