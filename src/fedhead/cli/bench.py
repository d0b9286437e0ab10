"""The command bench."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fedhead.cli.app import Option, command
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from fedhead.bench.benchmark import BenchmarkResult

HEADER = "{:32} {:>7} {:8} {:5} {:>9} {:>7} {:>6} {:>6} {:>7}".format(
    "workload", "clients", "executor", "prec.", "steps/s", "ratio", "floor", "GiB", "comp. s"
)
COLUMNS = (
    "steps/s: local steps of all clients per second; ratio: to the plain loop; floor: share of the steps/s that the\n"
    "memory's bandwidth would allow; GiB: GPU memory beyond the data set; comp. s: compiling, not in steps/s"
)
LOOP_NOTE = (
    "loop: clients train one after another (on a CPU, one per thread), so more of them do not change steps/s: the 1x\n"
    "has {0} clients, or one per architecture if these are more, and --executors loop the first {0} per architecture"
)


@command("Look into")
def bench(
    workloads: Annotated[
        str | None,
        Option(
            "Workloads, comma-separated: simplecnn, moon, resnet20, fedetf, mixed. "
            "[default: simplecnn, and on a GPU resnet20 and mixed]"
        ),
    ] = None,
    clients: Annotated[
        str | None,
        Option("Numbers of clients, comma-separated; each is measured. [default: 10, and on a GPU 20 and 40]"),
    ] = None,
    executors: Annotated[
        str | None, Option("Executors besides the loop, comma-separated. [default: stack, and on a GPU lanes]")
    ] = None,
    precisions: Annotated[
        str | None,
        Option(
            "Precisions, comma-separated: fp32, tf32, bf16. "
            "[default: fp32, and bf16 where the device has instructions for it]"
        ),
    ] = None,
    device: Annotated[str, Option("Device: cpu, cuda or auto.")] = "auto",
    steps: Annotated[
        int | None, AtLeast(1), Option("Local steps of each client. [default: 100 on a GPU, 20 on a CPU]")
    ] = None,
    as_json: Annotated[bool, Option("Print the results as JSON in the last line.", flag="--json")] = False,
) -> None:
    """Measure the speed of executors in client-steps per second, relative to the plain loop.

    Examples:
      fedhead bench --device cuda
      fedhead bench --device cpu --clients 4 --steps 5
      fedhead bench --device cuda --workloads fedetf --clients 20 --executors stack --precisions bf16
    """
    from fedhead.bench import benchmark
    from fedhead.executors import select
    from fedhead.models.precision import has_bf16

    where = select.device(device)
    has_lanes = where.type == "cuda"
    chosen = (["stack", "lanes"] if has_lanes else ["stack"]) if executors is None else executors.split(",")
    for name in chosen:
        select.check_device(name, where)
    # On a CPU run only workloads that take about a minute; ResNet-20 takes many minutes.
    default_workloads, default_clients = ("simplecnn,resnet20,mixed", "10,20,40") if has_lanes else ("simplecnn", "10")
    models = (default_workloads if workloads is None else workloads).split(",")
    counts = _counts(default_clients if clients is None else clients)
    if precisions is None:
        precisions = "fp32,bf16" if has_bf16(where) else "fp32"
    shown = set[str]()

    def show(result: BenchmarkResult) -> None:
        if result.workload not in shown:
            print(HEADER)
        shown.add(result.workload)
        _print_line(result)

    results = benchmark.bench(
        models,
        counts,
        chosen,
        precisions.split(","),
        device,
        steps=steps,
        on_result=show,
        on_begin=lambda name: print(f"measuring {name}", file=sys.stderr, flush=True),
    )
    print(COLUMNS)
    print(LOOP_NOTE.format(benchmark.loop_clients(where)))
    if as_json:
        print(json.dumps([asdict(result) for result in results]))


def _counts(text: str) -> list[int]:
    counts = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    if min(counts) < 1:
        raise BadInput(f"--clients {text!r}: write whole numbers from 1 up with commas between: 10,20")
    return counts


def _print_line(r: BenchmarkResult) -> None:
    rate = f"{r.steps_per_s:9,.0f}" if r.steps_per_s >= 100 else f"{r.steps_per_s:9.1f}"
    print(
        f"{r.workload:32} {r.clients:7} {r.executor:8} {r.precision:5} {rate} {r.ratio:6.1f}x "
        f"{r.floor_share:6.1%} {r.peak_gib:6.2f} {r.compile_s:7.1f}",
        flush=True,
    )
