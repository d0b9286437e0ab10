"""CUDA graphs: work that is captured once and replayed without work on the host."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import torch

_capturing = threading.Lock()  # one thread captures at a time


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture what `work` launches in a CUDA graph.

    Other threads may use the GPU meanwhile. Graphs that are replayed at the same time must be captured on different
    streams, since libraries have one workspace per stream; so the current stream is used, unless it is the default one,
    on which nothing can be captured.

    Args:
        work: Function that launches kernels on static tensors.

    Returns:
        The graph.
    """
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream()
    stream = None if current == torch.cuda.default_stream() else current
    with _capturing:
        gc.collect()
        gc.disable()  # collecting an old graph now would end the capture, in which freeing is not permitted
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
        finally:
            gc.enable()
    return graph
