"""Client states in host memory, for GPU runs that train a small cohort of many clients.

Each state is stored in pinned memory, one buffer per dtype, so that copies overlap with GPU work. New states are copied
to the host on a separate stream. The states of the next cohort are prefetched on it while the current cohort trains.
The GPU thus holds the states of at most two cohorts, for any number of clients.
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
    """Client states in host memory, with prefetching to the device.

    States are replaced, never modified in place, so snapshots can share them.

    Args:
        initial: Function from a client number to its initial state.
        device: Device that clients train on.
    """

    shares_stacks: ClassVar[bool] = False  # each state is copied to the host separately

    def __init__(self, initial: Callable[[int], Tree], device: torch.device):
        super().__init__(initial)
        self._copies = Copies(device)
        self._packed: dict[int, PackedTree] = {}  # states with tensors, by client
        self._wanted: frozenset[int] = frozenset()  # clients of the next round
        self._prefetched: dict[int, Tree] = {}  # their states on the device

    @property
    def kept(self) -> StackedClientStates:
        """States in host memory of the clients that took part; waits for pending copies."""
        self._copies.wait()
        return self._kept

    @property
    def hold_tensors(self) -> bool:
        """True if any state holds tensors; with most methods clients keep nothing."""
        return bool(self._packed) or next(self._initial(0).tensors(), None) is not None

    def __getitem__(self, client: int) -> Tree:
        """Return a state: on the device if it was prefetched, else in host memory."""
        if client in self._prefetched:
            self._copies.join()
            return self._prefetched[client]
        if client in self._kept:
            self._copies.wait()
        return super().__getitem__(client)

    def __setitem__(self, client: int, state: Tree) -> None:
        if next(state.tensors(), None) is None:  # fast path: most methods keep no tensors
            self._packed.pop(client, None)
            self._prefetched.pop(client, None)
            self._kept[client] = state
        else:
            self._keep_packed([client], [pack_tree(state)])

    def keep(self, clients: Sequence[int], kept: TreeRows) -> None:
        """Replace the states of clients; states of one stack are packed together.

        Args:
            clients: Client numbers.
            kept: New state of each client.
        """
        if isinstance(kept, StackedTrees) and next(kept.stacked.tensors(), None) is not None:
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
        """Copy the states of clients to the device asynchronously.

        Args:
            clients: Clients of the next round; earlier prefetched states are released.
            training: Clients of the current round, whose new states stay on the device if they are needed next.
        """
        self._wanted = frozenset(clients)
        training = list(training)
        if self._packed:
            self._copies.reserve(next(iter(self._packed.values())).buffers, len(training))
        fetched = [k for k in self._wanted.difference(training) if k in self._packed]
        try:
            on_device = self._copies.fetch([self._packed[k].buffers for k in fetched])
        except torch.OutOfMemoryError:  # the executor copies each state on demand
            self.release_prefetched()
            return
        self._prefetched = {
            k: self._packed[k]._replace(buffers=buffers).tree() for k, buffers in zip(fetched, on_device, strict=True)
        }

    def release_prefetched(self) -> None:
        """Release all prefetched states."""
        self._prefetched.clear()
        self._wanted = frozenset()

    def clear(self) -> None:
        """Reset every client to its initial state, and release prefetched states."""
        super().clear()
        self._packed.clear()
        self.release_prefetched()

    def copy(self) -> HostStates:
        """Return a copy that can be modified independently."""
        other = HostStates(self._initial, self._copies.device)
        other._kept, other._packed = self.kept.copy(), dict(self._packed)
        return other


class Copies:
    """Asynchronous copies between host and device on a separate stream; plain copies on a CPU.

    Args:
        device: Device.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._host_pending = False  # whether copies to the host may be pending
        self._device_pending = False  # whether copies to the device may be pending

    def to_host(self, states: list[Buffers]) -> list[Buffers]:
        """Copy buffers to new pinned memory; call `wait` before reading it."""
        if self._stream is not None:  # copy after the work queued so far
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._on_copy_stream():
            copies = [{kind: self._pinned(t) for kind, t in buffers.items()} for buffers in states]
        self._host_pending = True
        return copies

    def _pinned(self, buffer: Tensor) -> Tensor:
        """Copy one buffer to its own pinned memory, so that it can be freed independently of others."""
        copy = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=self._on_gpu)
        copy.copy_(buffer, non_blocking=True)
        if self._stream is not None and buffer.is_cuda:
            buffer.record_stream(self._stream)  # else its own stream might reuse the memory too early
        return copy

    def reserve(self, like: Buffers, copies: int) -> None:
        """Allocate pinned memory for a number of copies in advance, because pinning is slow."""
        if self._on_gpu:  # torch caches the freed memory for the next tensors of this size
            _ = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for _ in range(copies) for t in like.values()]

    def fetch(self, states: list[Buffers]) -> list[Buffers]:
        """Copy host buffers to the device asynchronously; call `join` before using them."""
        # no need to wait for other work: torch reuses this stream's memory only after its users are done
        with self._on_copy_stream():
            copies = [{kind: t.to(self.device, non_blocking=True) for kind, t in buffers.items()} for buffers in states]
        if self._stream is not None:  # other streams will use the copies
            for t in (t for buffers in copies for t in buffers.values()):
                t.record_stream(torch.cuda.current_stream(self.device))
        self._device_pending = True
        return copies

    def wait(self) -> None:
        """Block the host until all copies are done."""
        if self._host_pending and self._stream is not None:
            self._stream.synchronize()
        self._host_pending = False

    def join(self) -> None:
        """Make later work on the device wait for the copies."""
        if self._device_pending and self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._device_pending = False

    def _on_copy_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
