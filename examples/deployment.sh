#!/usr/bin/env bash
# The same recipe in simulation and on Flower, with one process per site; needs `pip install 'fedhead[flower]'`.
# docs/deployment.md shows real machines, with TLS.
set -euo pipefail

settings=(rounds=1 subset=240)
fedhead run digits clients=2 "${settings[@]}" --out runs/simulation
fedhead deploy init flower --recipe digits --sites 2 "${settings[@]}"
fedhead deploy up flower --insecure
fedhead report runs/simulation flower/run --out report.html
