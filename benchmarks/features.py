"""An epoch of head training on features that were computed once, and through the frozen extractor: seconds of each.

    python benchmarks/features.py [images] [pixels]

The images are scikit-learn's digits, resized.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import fedhead as fh

ROUNDS = 3


def seconds_per_epoch(federation: fh.Federation, cached: bool) -> tuple[float, float | None]:
    """Return the seconds of an epoch over all clients, and the accuracy after the rounds."""
    ends: list[float] = []

    def note(_: Any) -> None:
        ends.append(time.perf_counter())

    result = fh.run(
        federation,
        "efficientnet_lite0",
        rounds=ROUNDS,
        lr=0.1,
        batch_size=16,
        freeze=["extractor"],
        cache_features=cached,
        evaluate_every=ROUNDS,
        executor="loop",
        on_round=note,
    )
    return (ends[-2] - ends[0]) / (ROUNDS - 2), result.accuracy  # the last round is evaluated, the first warms up


def main() -> None:
    """Print both, and their ratio, as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=int, nargs="?", default=64, help="how many [default: %(default)s]")
    parser.add_argument(
        "pixels", type=int, nargs="?", default=224, help="their height and width [default: %(default)s]"
    )
    asked = parser.parse_args()
    images, pixels = asked.images, asked.pixels
    federation = fh.Federation.load("digits", "iid", clients=4, subset=images, normalize="imagenet-gray", resize=pixels)
    once, accuracy = seconds_per_epoch(federation, cached=True)
    through, same = seconds_per_epoch(federation, cached=False)
    facts = {"images": images, "pixels": pixels, "through": through, "once": once, "ratio": through / once}
    print(json.dumps({**facts, "accuracy": [accuracy, same]}))


if __name__ == "__main__":
    main()
