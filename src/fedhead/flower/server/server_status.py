"""Status file of a run's server, for the process that waits for the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.process import ProcessIdentity

VARIABLE = "FEDHEAD_SERVER_STATUS"  # the environment variable that names the file


@dataclass(frozen=True)
class ServerStatus:
    """Process of a run's server, and why it stopped."""

    process: ProcessIdentity
    failure: str | None = None  # what the operator has to fix before resuming

    def write(self, path: str | Path) -> None:
        """Write the status atomically."""
        with atomic(Path(path)) as draft:
            draft.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ServerStatus | None:
        """Read the status; None if the server has written none yet."""
        if not path.exists():
            return None
        entry: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(ProcessIdentity.from_dict(entry["process"]), entry["failure"])
