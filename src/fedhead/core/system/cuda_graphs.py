"""CUDA graphs: kernels captured once and replayed with little work on the host."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import torch

_capturing = threading.Lock()  # one thread captures at a time


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture the kernels that `work` launches in a CUDA graph.

    Other threads may use the GPU meanwhile. Graphs that are replayed concurrently must be captured on different
    streams, since libraries have one workspace per stream. Therefore the current stream is used, unless it is the
    default one, which does not support capture.

    Args:
        work: Function that launches kernels on static tensors.

    Returns:
        Captured graph.
    """
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream()
    stream = None if current == torch.cuda.default_stream() else current
    with _capturing:
        gc.collect()
        gc.disable()  # freeing an old graph is not permitted during capture
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        finally:
            gc.enable()
    return graph
