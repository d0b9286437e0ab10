"""Status file of a run's server, for the process that waits for the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.process import ProcessIdentity

VARIABLE = "FEDHEAD_SERVER_STATUS"  # environment variable with the path of the file


@dataclass(frozen=True)
class ServerStatus:
    """Process of a run's server, and the reason of its failure."""

    process: ProcessIdentity
    failure: str | None = None  # to be fixed by the operator before resuming

    def write(self, path: str | Path) -> None:
        """Write the status atomically."""
        with atomic(Path(path)) as draft:
            draft.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ServerStatus | None:
        """Read the status; None if the server has not written it yet."""
        if not path.exists():
            return None
        entry: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(ProcessIdentity.from_dict(entry["process"]), entry["failure"])
