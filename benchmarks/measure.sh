#!/usr/bin/env bash
# Measure cells of the papers' tables for some minutes, on a machine that may disappear afterwards.
#
#   benchmarks/measure.sh DATA RESULTS MINUTES                        # what is missing, table by table
#   benchmarks/measure.sh DATA RESULTS MINUTES TABLE [OPTION ...]     # one table; options of fedhead reproduce
#
#   benchmarks/measure.sh ~/data results 9 ccvr/table2 --cells cifar10-0.5,cifar10-0.1,cifar10-0.05 --splits 3 --seeds 2
#
# DATA holds cifar-10-batches-py and the like. RESULTS takes the rows (results.csv) and is brought level with the
# repository's results/ first, so that nothing is measured twice; bring its results.csv back and commit it. RUNS, the
# folder of the run folders (default: runs), is needed only to go on with a run that was interrupted. PRECISION
# (default: bf16) and PYTHON can be set as well.
set -euo pipefail
data=$1 results=$2 minutes=$3
shift 3
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$results"
if [ -d "$root/results" ] && [ ! "$root/results" -ef "$results" ]; then
    cp "$root"/results/*.csv "$results"/ 2>/dev/null || true
fi
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
reproduce=("${PYTHON:-python3}" -m fedhead reproduce)
settings=(--data-dir "$data" --results "$results" --precision "${PRECISION:-bf16}")
if [ $# -eq 0 ]; then
    end=$((SECONDS + 60 * minutes))
    for table in $("${reproduce[@]}" | cut -d' ' -f1); do
        left=$(((end - SECONDS) / 60))
        [ "$left" -gt 0 ] || break
        "${reproduce[@]}" "$table" --minutes "$left" --out "${RUNS:-runs}/$table" "${settings[@]}" || true
    done
else
    table=$1
    shift
    "${reproduce[@]}" "$table" "$@" --minutes "$minutes" --out "${RUNS:-runs}/$table" "${settings[@]}"
fi
