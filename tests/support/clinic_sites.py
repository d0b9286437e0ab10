"""Deployments of three clinics with CSV files, on an in-process grid."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from clinics import NAMES, write_clinics

from fedhead.deploy.project import Project
from fedhead.flower import factory
from fedhead.testing.inprocess import InProcess

WORDS = ("rounds=2", "batch_size=8", "lr=0.1", "model=mlp(hidden=[6])", "missing=mean", "normalize=standard")


def project(folder: Path, *words: str) -> tuple[Project, InProcess]:
    """Write three sites with CSV files, which know the patients by number, and the first calls its label `died`."""
    files = write_clinics(folder)
    table = pd.read_csv(files["north"], dtype={"patient": str})
    table.rename(columns={"outcome": "died"}).to_csv(files["north"], index=False)
    (folder / "mine.yaml").write_text("method: fedavg\n")
    chosen = {word.partition("=")[0]: word for word in [*WORDS, *words]}
    made = Project.init(
        folder / "clinic",
        str(folder / "mine.yaml"),
        NAMES,
        list(chosen.values()),
        [str(path) for path in files.values()],
        schema=folder / "schema.yaml",
    )
    made.server_file.write_text(made.server_file.read_text().replace("join_seconds: 120", "join_seconds: 0.1"))
    for name, file in made.sites().items():
        with file.path.open("a") as text:
            label = "label: died\n" if name == "north" else ""
            text.write(f"{label}leave_out: [patient]\nclient_test: 0.25\nmin_class_count: 1\n")
    return made, InProcess({10 + k: factory.site(file) for k, file in enumerate(made.sites().values())})
