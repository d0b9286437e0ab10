"""Cost of a round on Flower beyond the training: seconds, and CPU seconds of each kind of process.

A SuperLink and its sites run on this machine, with TLS and keys, and train a small model. A simulation of the same run
by the loop executor gives the seconds of the training. The CPU seconds are those from the end of the first round to the
end of the last one; other work on the machine changes them less than the seconds.

    python benchmarks/flower_overhead.py --sites 3 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import Counter
from pathlib import Path

from fedhead.deploy import certificates
from fedhead.deploy.local_federation import LocalFederation
from fedhead.deploy.project import Project
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.recipes.experiment import prepare

KINDS = ("flower-superlink", "flower-superexec", "flwr-serverapp", "fedhead.flower.node", "fedhead.flower.worker")
KINDS += ("flower-supernode", "flwr-clientapp")
SETTINGS = ["local_epochs=1", "subset=240"]


def cpu_seconds(mark: str) -> Counter[str]:
    """CPU seconds so far, by kind, of the running processes with a text in their environment."""
    found: Counter[str] = Counter()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words, own = (entry / "cmdline").read_text(), mark in (entry / "environ").read_text()
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        kind = next((kind for kind in KINDS if kind in words), None)
        if own and kind is not None:
            # with those of children that have ended
            found[kind] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def measure(sites: int, rounds: int, folder: Path) -> tuple[list[float], list[float], Counter[str]]:
    """The seconds of every round but the first, those of its training, and the CPU seconds by kind of process."""
    names = [f"site-{k}" for k in range(sites)]
    settings = [*SETTINGS, f"rounds={rounds + 2}", f"evaluate_every={rounds + 2}"]
    project = Project.init(folder, "digits", names, settings)
    certificates.write(project.certs, ["127.0.0.1"], names)
    taken: list[Counter[str]] = []

    def log(line: str) -> None:
        print(line, flush=True)
        if " round " in line and len(taken) <= rounds:  # not the last one, which tests the final models too
            taken.append(cpu_seconds(str(folder)))

    LocalFederation(project, secure=True, log=log).run()
    lines = (project.path / "run" / "metrics.jsonl").read_text().splitlines()
    simulation = Simulation(*prepare(project.server().recipe_of_run()), Compute(device="cpu", executor="loop"))
    training = [train_round(simulation, number)["seconds"] for number in range(1, rounds + 3)]
    return [json.loads(line)["seconds"] for line in lines[1:-1]], training[1:-1], taken[-1] - taken[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, training, cpu = measure(given.sites, given.rounds, Path(folder) / "overhead")
    for name, found in (("round", seconds), ("training", training)):
        print(f"{name:<22} best {min(found):.2f} s, median {statistics.median(found):.2f} s")
    for kind, used in cpu.most_common():
        print(f"{kind:<22} {used / given.rounds:6.2f} CPU seconds per round")
    print(f"{'together':<22} {cpu.total() / given.rounds:6.2f}")


if __name__ == "__main__":
    main()
