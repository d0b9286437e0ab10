"""The command ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, command


@command("Deploy")
def ledger(
    path: Annotated[Path, Argument("A site's folder, the run folder of a server, or a ledger.jsonl.")],
) -> None:
    """List the requests of a server to a site, and what the site sent.

    The lines of ledger.jsonl have more entries: the recipe, names and shapes of all tensors, metrics.

    Examples:
      fedhead ledger clinic/sites/north
      fedhead ledger clinic/run
    """
    from fedhead.cli.output import print_table
    from fedhead.flower.ledger import Ledger
    from fedhead.report.table import Table

    head = ["time", "site", "run", "round", "request", "decision", "samples", "bytes", "digest"]
    rows = []
    for entry in Ledger.find(path).entries():
        work = [entry.get("kind", "unreadable"), entry.get("algorithm", "")]
        request = " ".join(work) if work[0] in ("work", "test", "model") else work[0]
        numbers, trees = entry.get("numbers", {}), entry.get("sent", {})
        samples = numbers.get("tests" if work[0] == "test" else "samples", "")
        size, digests = sum(tree["bytes"] for tree in trees.values()), [tree["digest"][:12] for tree in trees.values()]
        start = [entry["time"], entry.get("site") or "", entry.get("run", ""), entry.get("round", ""), request]
        rows.append([str(cell) for cell in (*start, entry["decision"], samples, size, " ".join(digests))])
    print_table(Table("", head, rows), left=6)
