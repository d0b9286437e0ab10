"""Texts whose clients are natural: reviews of several shops, words as tokens, the shops as clients.

    python natural_text.py [FILE.npz]

takes a file with the arrays text, offsets, y and site (docs/data.md), or makes a small one.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedhead as fh

WORDS = 2000  # numbers of tokens; 0 fills texts up


def tokenize(text: str) -> list[int]:
    """Return the numbers of a text's first 40 words; any tokenizer can take its place."""
    return [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()[:40]]


class Bag(nn.Module):
    """The mean of the words' embeddings, and a linear classifier."""

    def __init__(self, classes: int):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the logits; the mask says where a text has words."""
        words = self.words(x)
        there = mask.unsqueeze(-1).to(words.dtype)
        return self.fc((words * there).sum(1) / there.sum(1).clamp_min(1))


def make(path: Path) -> Path:
    """Write reviews of three shops that differ in what is written about, and in how often it is good."""
    rng = np.random.default_rng(0)
    shops = {
        "books": (["story", "author"], 0.7),
        "kitchen": (["knife", "oven"], 0.5),
        "music": (["song", "voice"], 0.3),
    }
    tone = {1: ["lovely", "great", "recommend"], 0: ["dull", "broken", "refund"]}
    texts, y, site = [], [], []
    for number, (things, share) in enumerate(shops.values()):
        for _ in range(80):
            good = int(rng.random() < share)
            words = rng.choice([*things, "the", "a", *tone[good]], rng.integers(4, 15)).tolist()
            texts.append(" ".join([*words, str(rng.choice(tone[good]))]).encode())
            y.append(good)
            site.append(number)
    offsets = np.cumsum([0, *map(len, texts)])
    text = np.frombuffer(b"".join(texts), np.uint8)
    np.savez(path, text=text, offsets=offsets, y=y, site=site, class_names=["bad", "good"], site_names=list(shops))
    return path


def main() -> None:
    """Train over the shops, calibrate the classifier, and say how well it does at the worst of them."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else make(Path("reviews.npz"))
    federation = fh.Federation.load(path, encode=tokenize, test=0.2)
    torch.manual_seed(0)
    model = fh.split(Bag(federation.classes), classifier="fc")
    settings = {"rounds": 5, "local_epochs": 2, "batch_size": 16, "optimizer": "adam", "lr": 0.01}
    run = fh.run(federation, model, **settings, stages=[fh.CCVR(samples=200)], metrics=["f1", "worst_client"])
    for name, metrics in (("FedAvg", run.rows[-1]["metrics"]), ("CCVR", run.stage_rows["ccvr"]["metrics"])):
        print(f"{name}: macro-F1 {100 * metrics['f1']:.1f} %, worst client {100 * metrics['worst_client']:.1f} %")


if __name__ == "__main__":
    main()
