"""Client states in the host's memory, for a GPU that trains a few of many clients in a round.

A state lies in page-locked memory, one buffer per dtype, which a GPU reads and writes beside its other work. What a
client keeps is copied there on a separate stream; the states of the next round's clients are copied back on it while
this round's train. The GPU thus holds the states of two cohorts, however many clients there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from fedhead.core.tree.packing import Buffers, PackedTree, pack_rows, pack_tree
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, TreeRows
from fedhead.engine.states.client_states import ClientStates
from fedhead.engine.states.stacked_client_states import StackedClientStates


class HostStates(ClientStates):
    """Client states in the host's memory; those that are asked for ahead are on the device when they are needed.

    A state is replaced and never changed, so whoever holds one, such as a snapshot, may keep it.

    Args:
        initial: Returns a client's initial state.
        device: Where clients train.
    """

    shares_stacks: ClassVar[bool] = False  # each is copied to the host

    def __init__(self, initial: Callable[[int], Tree], device: torch.device):
        super().__init__(initial)
        self._copies = Copies(device)
        self._packed: dict[int, PackedTree] = {}  # each state that is kept and holds tensors
        self._wanted: frozenset[int] = frozenset()  # clients of the next round
        self._prefetched: dict[int, Tree] = {}  # their states on the device

    @property
    def kept(self) -> StackedClientStates:
        """The states of the clients that took part, in the host's memory; waits until they are written."""
        self._copies.wait()
        return self._kept

    @property
    def hold_tensors(self) -> bool:
        """Whether there is anything to copy: most methods' clients keep nothing."""
        return bool(self._packed) or next(self._initial(0).tensors(), None) is not None

    def __getitem__(self, client: int) -> Tree:
        """Return a state on the device if it was asked for ahead, or else in the host's memory."""
        if client in self._prefetched:
            self._copies.join()
            return self._prefetched[client]
        if client in self._kept:
            self._copies.wait()
        return super().__getitem__(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        if next(state.tensors(), None) is None:  # of most methods, for thousands of clients
            self._packed.pop(client, None)
            self._prefetched.pop(client, None)
            self._kept[client] = state
        else:
            self._keep_packed([client], [pack_tree(state)])

    def keep(self, clients: Sequence[int], kept: TreeRows) -> None:
        """Replace the states of clients; rows of one stack are packed at once.

        Args:
            clients: The clients' numbers.
            kept: What each keeps.
        """
        if isinstance(kept, StackedTrees) and kept.is_whole and next(kept.stacked.tensors(), None) is not None:
            self._keep_packed(clients, pack_rows(kept))
        else:
            super().keep(clients, kept)

    def _keep_packed(self, clients: Sequence[int], states: list[PackedTree]) -> None:
        on_host = self._copies.to_host([state.buffers for state in states])
        for client, state, buffers in zip(clients, states, on_host, strict=True):
            self._packed[client] = kept = state._replace(buffers=buffers)
            self._kept[client] = kept
            self._prefetched.pop(client, None)
            if client in self._wanted:
                self._prefetched[client] = state.tree().to(self._copies.device)

    def prefetch(self, clients: Iterable[int], training: Iterable[int]) -> None:
        """Copy the states of clients to the device, beside its other work.

        Args:
            clients: Those that take part in the next round; what was copied for earlier ones is released.
            training: Those whose state is about to be replaced: the new one stays on the device.
        """
        self._wanted = frozenset(clients)
        training = list(training)
        if self._packed:
            self._copies.reserve(next(iter(self._packed.values())).buffers, len(training))
        fetched = [k for k in self._wanted.difference(training) if k in self._packed]
        try:
            on_device = self._copies.fetch([self._packed[k].buffers for k in fetched])
        except torch.OutOfMemoryError:  # each is copied when it is needed, by an executor that can do with less memory
            self.release_prefetched()
            return
        self._prefetched = {
            k: self._packed[k]._replace(buffers=buffers).tree() for k, buffers in zip(fetched, on_device, strict=True)
        }

    def release_prefetched(self) -> None:
        """Hold no state on the device any more."""
        self._prefetched.clear()
        self._wanted = frozenset()

    def clear(self) -> None:
        """Let every client have its initial state again, also those whose state was copied to the device ahead."""
        super().clear()
        self._packed.clear()
        self.release_prefetched()

    def copy(self) -> HostStates:
        """Return the same states, to be written to without touching these."""
        other = HostStates(self._initial, self._copies.device)
        other._kept, other._packed = self.kept.copy(), dict(self._packed)
        return other


class Copies:
    """Copies between host and device on a separate stream; on a CPU plain copies, so that all else can be tested there.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._unseen = False  # whether the host has not waited for the last copies to it
        self._unjoined = False  # whether the device's other work has not waited for the last copies to the device

    def to_host(self, states: list[Buffers]) -> list[Buffers]:
        """Copy buffers of the device, or of the host, to new page-locked memory; `wait` before it is read."""
        if self._stream is not None:  # after what the device has been told so far
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._on_copy_stream():
            found = [{kind: self._page_locked(t) for kind, t in one.items()} for one in states]
        self._unseen = True
        return found

    def _page_locked(self, buffer: Tensor) -> Tensor:
        """A copy by itself: with others in one buffer, the last of them would keep the memory of all."""
        copy = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=self._on_gpu)
        copy.copy_(buffer, non_blocking=True)
        if self._stream is not None and buffer.is_cuda:
            buffer.record_stream(self._stream)  # it was made on another one, which might reuse its memory
        return copy

    def reserve(self, like: Buffers, copies: int) -> None:
        """Allocate page-locked memory for so many copies of such buffers ahead: to lock pages takes long."""
        if self._on_gpu:  # the tensors are dropped at once; torch keeps their memory for the next ones of this size
            _ = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for _ in range(copies) for t in like.values()]

    def fetch(self, states: list[Buffers]) -> list[Buffers]:
        """Copy buffers of the host to new memory on the device, beside all its work; `join` before they are used."""
        # after no other work: torch hands out memory of this stream again only when those who used it are done with it
        with self._on_copy_stream():
            found = [{kind: t.to(self.device, non_blocking=True) for kind, t in one.items()} for one in states]
        if self._stream is not None:  # others will use it
            for t in (t for one in found for t in one.values()):
                t.record_stream(torch.cuda.current_stream(self.device))
        self._unjoined = True
        return found

    def wait(self) -> None:
        """Let the host wait until all copies are done."""
        if self._unseen and self._stream is not None:
            self._stream.synchronize()
        self._unseen = False

    def join(self) -> None:
        """Let the device's other work from now on begin after the copies."""
        if self._unjoined and self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._unjoined = False

    def _on_copy_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
