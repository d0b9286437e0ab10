"""Flower ServerApp: `fedhead.flower.server_app:app` in a project's pyproject.toml."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
LINE = 2000  # length limit of a log line


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server; Flower's run config gives `server`, the path of server.yaml, and `resume`, `evaluate`, …."""
    from fedhead.core.system.errors import BadInput, FedheadError
    from fedhead.core.system.process import ProcessIdentity, exit_with_parent
    from fedhead.core.system.text import printable
    from fedhead.flower.backoff import shorten_object_waits
    from fedhead.flower.config import ServerFile
    from fedhead.flower.server.server_status import VARIABLE, ServerStatus
    from fedhead.flower.server_run import evaluate, serve

    copy, status_file = os.environ.get("FEDHEAD_SERVER_LOG"), os.environ.get(VARIABLE)
    status = ServerStatus(ProcessIdentity.of(os.getpid()))

    def log(text: str) -> None:
        line = printable(text, LINE)
        print(f"fedhead: {line}", flush=True)  # visible in `flwr log` only
        if copy:
            with open(copy, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def tell(now: ServerStatus) -> None:
        if status_file:
            now.write(status_file)

    tell(status)
    shorten_object_waits()
    exit_with_parent(os.getppid())  # else the server would wait and lock its run folder forever
    path = context.run_config.get("server")
    try:
        if not path:
            raise BadInput("no server.yaml is named: flwr run app --run-config 'server=\"/path/to/server.yaml\"'")
        file = ServerFile.read(str(path)).without(str(context.run_config.get("leave_out_site", "")) or None)
        if context.run_config.get("insecure", False):
            file = replace(file, keys=None)
        if context.run_config.get("evaluate", False):
            evaluate(file, grid, log)
        else:
            serve(file, grid, bool(context.run_config.get("resume", False)), log)
    except FedheadError as error:
        log(f"error: {error}")
        tell(replace(status, failure=printable(error, LINE)))
        raise
