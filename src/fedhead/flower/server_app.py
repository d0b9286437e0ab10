"""The ServerApp that Flower runs beside the SuperLink: `fedhead.flower.server_app:app` in a pyproject.toml."""

from __future__ import annotations

import os
import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run that `server` (a path to server.yaml on this machine) describes; `resume` goes on with it."""
    from fedhead.core.errors import BadInput, FedheadError
    from fedhead.flower.files import ServerFile
    from fedhead.flower.serving import serve

    log = os.environ.get("FEDHEAD_SERVER_LOG")  # Flower shows this output only to `flwr log`

    def say(line: str) -> None:
        print(f"fedhead: {line}", flush=True)
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    path = context.run_config.get("server") or os.environ.get("FEDHEAD_SERVER")
    try:
        if not path:
            raise BadInput("no server.yaml is named: flwr run . --run-config 'server=\"/path/to/server.yaml\"'")
        serve(ServerFile.read(str(path)), grid, bool(context.run_config.get("resume", False)), say)
    except FedheadError as error:
        say(f"error: {error}")  # the last line of the log says what to fix
        raise
