#!/usr/bin/env bash
# The same recipe in simulation and on Flower, with one process per client; needs `pip install 'fedhead[flower]'`.
# docs/deployment.md shows real machines, with TLS.
set -euo pipefail

recipe=(digits clients=2 rounds=1 subset=240)
fedhead run "${recipe[@]}" --out runs/simulation
fedhead run "${recipe[@]}" --transport flower --out runs/flower
fedhead report runs/simulation runs/flower --out report.html
