"""Bytes and seconds of secure sums of pooled statistics, with all sites in one process.

    python benchmarks/secure_sums.py --out benchmarks/secure_sums.csv  # 10 and 100 sites, d = 64 and 1280
    python benchmarks/secure_sums.py --sites 1000 --features 64
    python benchmarks/secure_sums.py --sites 1000 --features 1280 --masked 20

A share of the sites (`--dropped`) misses the step in which masked vectors are sent, which costs the server most. The
sum is compared with the plain one. Seconds are CPU time of one core. With `--masked 20`, only 20 sites compute their
masked vectors, the bytes of the others are counted, and there is no sum to compare.
"""

from __future__ import annotations

import argparse
import csv
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedhead.algorithm.upload import SecureSum
from fedhead.privacy.secure_sum import identity, shamir
from fedhead.privacy.secure_sum.client import SecureSumClient
from fedhead.privacy.secure_sum.server import SecureSumServer
from fedhead.privacy.secure_sum.session import Session

CLASSES = 10


def size(message: Any) -> int:
    return sum(map(len, message.values())) if isinstance(message, Mapping) else len(message)


def measure(sites: int, features: int, dropped: float, masked_sites: int | None) -> dict[str, str]:
    length = CLASSES + CLASSES * features + features * (features + 1) // 2  # counts, sums and one second moment
    session = Session(secrets.token_bytes(16), tuple(range(sites)), SecureSum().min_clients(sites))
    keys = identity.new_keys(range(sites))
    registered = {k: key.public_key() for k, key in keys.items()}
    members = {k: SecureSumClient(session, k, key, registered) for k, key in keys.items()}
    server = SecureSumServer(session, registered)
    seconds = {"site": 0.0, "server": 0.0}
    up = down = 0
    plain = np.zeros(length, np.uint64)
    vector = np.arange(length, dtype=np.uint64)

    def timed(who: str, call: Any, *given: Any) -> Any:
        begin = time.process_time()
        result = call(*given)
        seconds[who] += time.process_time() - begin
        return result

    adverts = {k: timed("site", member.advertise) for k, member in members.items()}
    up += size(adverts)
    messages = timed("server", server.advertised, adverts)
    down += sum(map(size, messages.values()))
    shares = {k: timed("site", members[k].share, message) for k, message in messages.items()}
    up += sum(map(size, shares.values()))
    messages = timed("server", server.shared, shares)
    down += sum(map(size, messages.values()))
    gone = set(range(int(dropped * sites)))
    here = sorted(messages.keys() - gone)
    asked = seconds["site"] / sites
    for k in here[:masked_sites]:
        own = vector * np.uint64(k + 1)
        masked = timed("site", members[k].mask, messages[k], own)
        timed("server", server.add, k, masked)
        up += masked.nbytes
        plain += own
    per_site = asked + (seconds["site"] - asked * sites) / len(here[:masked_sites])
    replies = len(here) * 8 * length
    if masked_sites is None:
        survivors = server.masked()
        revealed = {k: timed("site", members[k].unmask, survivors) for k in survivors}
        up += sum(map(size, revealed.values()))
        assert (timed("server", server.unmasked, revealed) == plain).all()
    else:
        neighbours = [len(message) + 1 for k, message in messages.items() if k in here]
        up += replies - len(here[:masked_sites]) * 8 * length + shamir.SHARE * sum(neighbours)
    return {
        "sites": f"{sites:,}",
        "d": f"{features}",
        "dropped": f"{dropped:.0%}",
        "bytes up / plain": f"{up / replies:.3f}",
        "more up per site": f"{(up - replies) / sites / 1000:,.1f} kB",
        "more down per site": f"{down / sites / 1000:,.1f} kB",
        "a site": f"{per_site:.2f} s",
        "the server": "–" if masked_sites is not None else f"{seconds['server']:.1f} s",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--features", type=int, nargs="+", default=[64, 1280])
    parser.add_argument("--dropped", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--masked", type=int, help="sites that compute their masked vectors; default: all")
    parser.add_argument("--out", type=Path, help="CSV file, to which rows are added")
    options = parser.parse_args()
    for features in options.features:
        for sites in options.sites:
            for dropped in options.dropped:
                row = measure(sites, features, dropped, options.masked)
                print("|", " | ".join(row.values()), "|", flush=True)
                if options.out is not None:
                    new = not options.out.exists()
                    with options.out.open("a", newline="", encoding="utf-8") as file:
                        csv.writer(file).writerows([row, row.values()] if new else [row.values()])
