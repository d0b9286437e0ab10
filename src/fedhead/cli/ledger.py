"""The command ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhead.cli.app import Argument, Option, command

if TYPE_CHECKING:
    from fedhead.report.table import Table


@command("Deploy")
def ledger(
    path: Annotated[Path, Argument("A site's folder, a run folder, or a ledger.jsonl.")],
    server: Annotated[Path | None, Option("Run folder of the server: list only replies that differ.")] = None,
) -> None:
    """List the server's requests and the replies of sites.

    The lines of ledger.jsonl have more entries: the recipe, names and shapes of all tensors, metrics. A simulated run
    has no such file: nothing leaves the machine. Its rounds and stages are listed with what would have left the
    clients.

    Examples:
      fedhead ledger clinic/sites/north
      fedhead ledger clinic/run
      fedhead ledger runs/mine
      fedhead ledger clinic/sites/north --server clinic/run
    """
    from fedhead.cli.output import print_table
    from fedhead.core.system.errors import FedheadError, require
    from fedhead.flower.ledger import LEDGER, Ledger, compare_ledgers
    from fedhead.report.table import Table
    from fedhead.runs.run_folder_schema import CONFIG

    if (path / CONFIG).exists() and not (path / LEDGER).exists():
        print_table(_simulated(path), left=3)
        return
    head = ["time", "site", "run", "round", "request", "decision", "samples", "bytes", "ε", "digest"]
    rows, entries = [], list(Ledger.find(path).entries())
    if server is not None:
        alike, entries = compare_ledgers(entries, list(Ledger.find(server).entries()))
        require(
            alike or entries,
            f"{path} and {server} have no replies to compare: give the folder of a site that has replied in this run, "
            "or restore its ledger from a backup",
        )
        print(f"{alike} replies are recorded alike by the site and the server")
        if not entries:
            return
    for entry in entries:
        work = [entry.get("kind", "unreadable"), entry.get("algorithm", "")]
        request = " ".join(work) if work[0] in ("work", "test", "model") else work[0]
        if secure := entry.get("secure"):
            request = f"secure {secure['step']} {work[1]}"
        numbers, trees = entry.get("numbers", {}), entry.get("sent", {})
        samples = numbers.get("tests" if work[0] == "test" else "samples", "")
        size, digests = sum(tree["bytes"] for tree in trees.values()), [tree["digest"][:12] for tree in trees.values()]
        start = [entry["time"], entry.get("site") or "", entry.get("run", ""), entry.get("round", ""), request]
        epsilon = f"{entry['privacy']['epsilon']:.3g}" if entry.get("privacy") else ""
        cells = (*start, entry["decision"], samples, size, epsilon, " ".join(digests))
        rows.append([str(cell) for cell in cells])
    print_table(Table("", head, rows), left=6)
    if server is not None:
        raise FedheadError(
            "the replies above are missing or different on the other side; "
            "one that the server lacks may have come too late"
        )
    if mus := [entry["privacy"]["mu"] for entry in entries if "mu" in entry.get("privacy", {})]:
        from fedhead.flower.site.policy import DELTA
        from fedhead.privacy import gaussian

        spent = gaussian.epsilon_of(DELTA, gaussian.compose(mus))
        print(f"\nstatistics with differential privacy: ε = {spent:.3g} in all, at δ = {DELTA:g}")


def _simulated(path: Path) -> Table:
    """Return the rounds and stages of a simulated run: clients, entries that they sent, bytes."""
    from fedhead.api.privacy.messages import UP
    from fedhead.api.privacy.wire import wire_of_recipe
    from fedhead.core.system.errors import BadInput
    from fedhead.report.table import Table
    from fedhead.runs.read_runs import read_run
    from fedhead.runs.run_folder import RunFolder

    run = read_run(RunFolder.open(path))
    sent: dict[str, list[str]] = {}
    try:
        for entry in wire_of_recipe(run.recipe):
            if entry.direction == UP and entry.bytes:
                sent.setdefault(entry.exchange, []).append(entry.name.partition("/")[0])
    except BadInput:  # the recipe names Python objects that are not here
        sent = {}
    work = [(str(row["round"]), "train", row) for row in run.rows]
    work += [("", name, row) for name, row in run.stage_rows.items()]
    body = []
    for number, name, row in work:
        exchanges = [key for key in sent if key == f"work {name}" or key.startswith(f"work {name}.")]
        names = dict.fromkeys(entry for key in exchanges for entry in sent[key])
        epsilon = f"{row['privacy']['epsilon']:.3g}" if row.get("privacy") else ""
        cells = [row["participants"], f"{row['bytes_up']:,}", f"{row['bytes_down']:,}", epsilon]
        body.append([number, name, ", ".join(names), *map(str, cells)])
    return Table("", ["round", "request", "sent by each client", "clients", "bytes up", "bytes down", "ε"], body)
