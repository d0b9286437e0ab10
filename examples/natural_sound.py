"""Sounds whose clients are speakers: spectrograms, a small convolutional network, and the speakers as clients.

    python natural_sound.py [FILE.npz]

takes a file with the arrays x, offsets, rate, y and site (docs/data.md), or makes a small one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import fedhead as fh


def make(path: Path) -> Path:
    """Write tones of three shapes (rising, falling, steady) by four speakers, whose voices differ in pitch."""
    rng = np.random.default_rng(0)
    rate, sounds, y, site = 2000, [], [], []
    for speaker, pitch in enumerate((180, 240, 300, 360)):
        for i in range(30):
            steps = int(rate * rng.uniform(0.25, 0.5))
            slope = (0.8, -0.5, 0.0)[i % 3] * np.linspace(0, 1, steps)
            phase = 2 * np.pi * np.cumsum(pitch * rng.uniform(0.9, 1.1) * (1 + slope)) / rate
            sounds.append((8000 * np.sin(phase) + rng.normal(0, 800, steps)).astype(np.int16))
            y.append(i % 3)
            site.append(speaker)
    offsets = np.cumsum([0, *map(len, sounds)])
    names = {"class_names": ["rising", "falling", "steady"], "site_names": ["Ada", "Ben", "Cleo", "Dan"]}
    np.savez(path, x=np.concatenate(sounds), offsets=offsets, rate=rate, y=y, site=site, **names)
    return path


def main() -> None:
    """Train over the speakers, calibrate the classifier, and keep the spectrograms in a file."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else make(Path("tones.npz"))
    federation = fh.Federation.load(path, encode="spectrogram(0.5)", test=0.2, normalize="standard")
    settings = {"rounds": 4, "local_epochs": 2, "batch_size": 16, "optimizer": "adam", "lr": 0.01}
    model = "digitscnn(channels=4, features=16)"
    run = fh.run(federation, model, **settings, stages=[fh.CCVR(samples=200)], metrics=["f1", "worst_client"])
    for name, metrics in (("FedAvg", run.rows[-1]["metrics"]), ("CCVR", run.stage_rows["ccvr"]["metrics"])):
        print(f"{name}: macro-F1 {100 * metrics['f1']:.1f} %, worst client {100 * metrics['worst_client']:.1f} %")
    federation.save("spectrograms.npz")  # with its test sets and normalization
    assert fh.Federation.load("spectrograms.npz").sizes == federation.sizes


if __name__ == "__main__":
    main()
