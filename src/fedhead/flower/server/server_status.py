"""The status of a run's server, in a file that whoever watches over the run reads; logs are for people."""

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
    """Which run the server executes, in which process, and why it stopped, if it had to."""

    run: str  # Flower's number of the run: a resumed run has another one
    process: ProcessIdentity
    failure: str | None = None  # what the operator has to fix before resuming

    def write(self, path: str | Path) -> None:
        """Store the status in a file, in one step."""
        with atomic(Path(path)) as draft:
            draft.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path, run: str | None) -> ServerStatus | None:
        """Return what the server of a run wrote, None if it has written nothing yet."""
        if not path.exists():
            return None
        entry: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = cls(entry["run"], ProcessIdentity.from_dict(entry["process"]), entry["failure"])
        return found if found.run == run else None
