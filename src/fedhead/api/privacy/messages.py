"""Messages between server and clients as a list: names, shapes, bytes, and what they reveal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedhead.report.table import Table

DOWN: Literal["to clients"] = "to clients"
UP: Literal["to server"] = "to server"
HEADER = "JSON"  # type of an entry of a message's header


@dataclass(frozen=True)
class Entry:
    """One tensor, or one entry of a header, in a message between the server and one client.

    Args:
        exchange: Kind of request and its algorithm, as in `fedhead ledger`: "hello", "work train", "test ccvr".
        direction: "to clients" or "to server".
        name: Full name.
        shape: Shape of the tensor.
        dtype: Type of its numbers; "JSON" in the header.
        bytes: Size of the tensor; 0 in the header, which has a few hundred characters.
        samples: Minimum number of samples in a sum; "per client" for other values of one client.
        needs: Whether the server needs the sum over clients, or each client's.
        when: Condition under which the entry is sent; empty: always.
        reveals: One sentence about the samples of a client.
    """

    exchange: str
    direction: Literal["to clients", "to server"]
    name: str
    shape: tuple[int, ...] = ()
    dtype: str = HEADER
    bytes: int = 0
    samples: str = ""
    needs: Literal["", "sum", "each"] = ""
    when: str = ""
    reveals: str = ""


class Wire(list[Entry]):
    """Entries of all messages, in the order in which they are sent."""

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries for JSON."""
        return [{**asdict(entry), "shape": list(entry.shape)} for entry in self]

    def of(self, exchange: str, direction: str) -> Wire:
        """Return the entries of one message."""
        return Wire(entry for entry in self if (entry.exchange, entry.direction) == (exchange, direction))

    def tables(self) -> list[Table]:
        """Return one table per message; tensors of a tree that reveal the same share a line."""
        messages = dict.fromkeys((entry.exchange, entry.direction) for entry in self)
        return [self.of(*message)._table(", ".join(message)) for message in messages]

    def _table(self, title: str) -> Table:
        header = [entry for entry in self if entry.dtype == HEADER and "/" not in entry.name]
        lines: dict[tuple[str, ...], list[Entry]] = {}
        for entry in self:
            if entry not in header:
                key = (entry.name.partition("/")[0], entry.dtype, entry.samples, entry.when, entry.reveals)
                lines.setdefault(key, []).append(entry)
        rows = []
        for (top, dtype, samples, when, text), parts in lines.items():
            size = sum(entry.bytes for entry in parts)
            name, shape = (
                (parts[0].name, str(list(parts[0].shape))) if len(parts) == 1 else (top, f"{len(parts)} parts")
            )
            cells = [name, shape, dtype, f"{size:,}" if size else "", samples, parts[0].needs]
            rows.append([*cells, f"{text} ({when})" if when else text])
        names = ", ".join(entry.name for entry in header)
        rows.append(["header", "", HEADER, "", "", "", header[0].reveals if len(header) == 1 else names])
        head = ["entry", "shape", "type", "bytes", "sum over", "server needs", "reveals"]
        keep = [column for column in range(len(head)) if column == 0 or any(row[column] for row in rows)]
        total = sum(entry.bytes for entry in self)
        return Table(f"{title}: {total:,} bytes", [head[i] for i in keep], [[row[i] for i in keep] for row in rows])
