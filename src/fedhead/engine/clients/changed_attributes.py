"""Attributes that a run's components change in themselves, so that a resumed run goes on with the changed ones.

A method should keep what changes in the server's state. One that changes its own attribute instead, say in
`aggregate`, trains with the new value from then on, and so must a run that is resumed. Snapshots therefore hold the
attributes that differ from those that the component was built with, in an entry of the server's state.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import warn_once
from fedhead.core.system.plain_values import is_plain
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.fingerprints import fingerprint

ENTRY = "~attributes"  # of the server's state in a snapshot
_FIX = (
    "keep it in the server's state, or make it a functools.cached_property where it follows from the component's "
    "settings"
)


class ChangedAttributes:
    """Finds which attributes of components have changed since the run began, and restores them when it is resumed.

    Args:
        parts: The components by what each is, such as "method"; None: the run has none.
        all_here: Whether clients train with these very components, not with their own on other machines.
    """

    def __init__(self, parts: Mapping[str, object | None], all_here: bool = True):
        self._all_here = all_here
        self._parts = {what: part for what, part in parts.items() if part is not None}
        # tensors are held too, so that no later one is taken for one of these
        self._first = {(what, name): (value, fingerprint(value)) for what, name, value in self._attributes()}

    def held_in(self, server: Tree) -> Tree:
        """Return the server's state with the attributes that have changed, or as it is where none has.

        What no checkpoint can hold is named in a warning, once.

        Args:
            server: The server's state after a round.
        """
        plain: dict[str, dict[str, Any]] = {}
        tensors: dict[str, Tensor] = {}
        lost: list[str] = []
        apart: dict[str, str] = {}  # the devices of tensors that are not where the server's are
        here = next((tensor.device for tensor in server.tensors()), None)
        for what, name, value in self._attributes():
            if (what, name) in self._first and self._first[what, name][1] == fingerprint(value):
                continue
            if not self._all_here:
                warn_once(
                    f"{self._shown(what, name)} changes at the server, and the sites go on with the first one: let the "
                    "server send it to them, as an entry of its state that `broadcast` names"
                )
            if (copy := _copy(value)) is not None:
                tensors[f"{what}.{name}"] = copy
                if here is not None and copy.device.type != here.type:
                    apart[f"{what}.{name}"] = str(copy.device)
            elif is_plain(value):
                plain.setdefault(what, {})[name] = value
            else:
                lost.append(self._shown(what, name))
                warn_once(
                    f"{lost[-1]} changes during the run, and no checkpoint can hold it (it is no number, text or "
                    f"tensor): a run that is stopped can't be resumed; {_FIX}"
                )
        if not plain and not tensors and not lost:
            return server
        text = json.dumps({"plain": plain, "lost": lost, "apart": apart}).encode()
        return server.replace({ENTRY: Tree(text=torch.tensor(list(text), dtype=torch.uint8), tensors=Tree(tensors))})

    def check_resumable(self, server: Tree) -> None:
        """Refuse a server's state from which a run can't go on as it would have.

        Args:
            server: The server's state of a snapshot.

        Raises:
            BadInput: With the attributes that it lacks.
        """
        if lost := _content(server)["lost"]:
            raise BadInput(
                f"the run can't be resumed: {', '.join(lost)} changed before it was stopped, and no checkpoint can "
                f"hold it; {_FIX}, and start a new run"
            )

    def restore(self, server: Tree) -> Tree:
        """Give the components the attributes that a snapshot holds, and return the server's state without them.

        Attributes that the snapshot does not hold are put back as they were built, and those that were added since are
        deleted. Those of a component that is not here (the sampler of a run that is only looked at) are skipped.

        Args:
            server: The server's state of a snapshot, on the device of the run.
        """
        held = _content(server)
        tensors = server[ENTRY]["tensors"] if ENTRY in server else Tree()
        # what is lost may have been made by `init_server`, and is needed to look at the run
        lost = {f"{what}.{name}" for what, name, _ in self._attributes() if self._shown(what, name) in held["lost"]}
        added = lost - {f"{what}.{name}" for what, name in self._first}
        self._undo({*added, *tensors, *(f"{what}.{name}" for what, values in held["plain"].items() for name in values)})
        for what, values in held["plain"].items():
            for name, value in values.items():
                self._set(what, name, value)
        for full, tensor in tensors.items():
            what, _, name = full.rpartition(".")
            first = self._first.get((what, name), (None, None))[0]
            device = held["apart"].get(full, first.device if isinstance(first, Tensor) else tensor.device)
            self._set(what, name, tensor.to(device).clone())
        for name in held["lost"]:
            warn_once(f"{name} changed during the run, and its checkpoint does not hold it: it is as it was built")
        return server.without(ENTRY)

    def _undo(self, held: Collection[str]) -> None:
        """Put back what has changed since this was made, in a later round than a snapshot's, and is not held in it."""
        now = {(what, name): fingerprint(value) for what, name, value in self._attributes()}
        for (what, name), (first, first_fingerprint) in self._first.items():
            if now.get((what, name)) == first_fingerprint or f"{what}.{name}" in held:
                continue
            if is_plain(first):
                self._set(what, name, json.loads(first_fingerprint))
            elif fingerprint(first) == first_fingerprint:
                self._set(what, name, first)
            else:
                warn_once(f"{self._shown(what, name)} was changed in place, and stays as a later round left it; {_FIX}")
        for what, name in now:
            if (what, name) not in self._first and f"{what}.{name}" not in held:
                object.__delattr__(self._parts[what], name)

    def _set(self, what: str, name: str, value: Any) -> None:
        if what in self._parts:
            object.__setattr__(self._parts[what], name, value)

    def _attributes(self) -> Iterator[tuple[str, str, Any]]:
        for what, part in self._parts.items():
            for name, value in list(getattr(part, "__dict__", {}).items()):
                # which follows from the other attributes, and is there only after its first use
                if not isinstance(getattr(type(part), name, None), functools.cached_property):
                    yield what, name, value

    def _shown(self, what: str, name: str) -> str:
        return f"{type(self._parts[what]).__name__}.{name}"


def _content(server: Tree) -> dict[str, Any]:
    if ENTRY not in server:
        return {"plain": {}, "lost": [], "apart": {}}
    found: dict[str, Any] = json.loads(bytes(server[ENTRY]["text"].tolist()))
    return {"apart": {}} | found


def _copy(value: Any) -> Tensor | None:
    """Return a copy of a tensor that a file can hold; None for anything else."""
    if type(value) is not Tensor:
        return None
    try:
        fits = value.layout is torch.strided and not value.is_complex() and not value.is_quantized
        return value.detach().clone() if fits else None
    except RuntimeError:  # it has escaped from a function of one client, which a stack called for many
        return None
