#!/usr/bin/env bash
# Train on the digits, and draw small versions of the papers' figures, in a few minutes on a CPU (pip install 'fedhead[analysis]'):
#   results/figures/digits.sh RUNS [PAPER ...]      # RUNS: run folder, whose finished runs are reused; papers: ccvr, fedetf, fedclassavg
set -euo pipefail
runs=$(realpath -m "$1")
cd "$(dirname "$0")"
here=$PWD
export OMP_NUM_THREADS=1

train() { # NAME RECIPE [KEY=VALUE ...]
    [ -f "$runs/$1/result.json" ] || [ -f "$runs/$1/seed1/result.json" ] ||
        fedhead run "${@:2}" --out "$runs/$1" --resume --quiet --device cpu
}
draw() { # FIGURE KIND RUN ... [OPTION ...]
    (cd "$runs" && fedhead figure "${@:2}" --device cpu --out "$here/$1.svg")
}

ccvr() { # ten clients, ten rounds of five epochs
    train ccvr/iid digits model=digitscnn partition=iid
    for method in fedavg fedprox moon; do train "ccvr/$method" digits model=digitscnn "method=$method"; done
    draw ccvr/figure1 cka ccvr/fedavg ccvr/iid
    draw ccvr/figure3 norms ccvr/fedavg --rounds 1,5
    draw ccvr/figure5 embed ccvr/fedavg --samples 300
    draw ccvr/figure6 separability ccvr/fedavg ccvr/fedprox ccvr/moon
    draw ccvr/figure8 inversion ccvr/fedavg
    draw ccvr/figure11 cka ccvr/fedavg ccvr/fedprox ccvr/moon && rm "$here/ccvr/figure11.svg"  # the maps are Figure 1's
    draw ccvr/figure12 norms ccvr/moon --rounds 1,5
    draw ccvr/figure13 embed ccvr/moon --samples 300
}

fedetf() { # ten clients, ten rounds of three epochs
    local settings=(digits model=digitscnn local_epochs=3 weight_decay=5e-4 client_test=0.3)
    for alpha in 0.1 0.05; do
        for method in fedavg fedrod fedetf; do
            train "fedetf/$alpha/$method" "${settings[@]}" "partition=dirichlet($alpha)" "method=$method" 'seeds=[0, 1]'
        done
    done
    train fedetf/iid "${settings[@]}" partition=iid
    for size in 9 10 16 64 128; do train "fedetf/dimension/$size" "${settings[@]}" method=fedetf "model.dim=$size"; done
    for absent in mask one; do
        train "fedetf/tuned/$absent" "${settings[@]}" method=fedetf "method.absent=$absent" 'stages=[finetune_etf]' \
            stage.finetune_etf.iterations=5
    done
    draw fedetf/figure1 classifiers fedetf/iid fedetf/0.1/fedavg/seed0 fedetf/0.05/fedavg/seed0
    draw fedetf/figure4 learning fedetf/0.05
    draw fedetf/figure5 collapse fedetf/0.05/fedavg/seed0 fedetf/0.05/fedetf/seed0 --rounds 1-10
    draw fedetf/figure6a dimension fedetf/dimension
    draw fedetf/figure6b finetune fedetf/tuned
    draw fedetf/figure8 learning fedetf/0.1
}

fedclassavg() { # twelve clients of three architectures; with one architecture, all weights are shared
    for method in local fedproto fedclassavg; do
        train "fedclassavg/dirichlet/$method" digits-mixed "method=$method"
        train "fedclassavg/skewed/$method" digits-mixed 'partition=skewed(2)' rounds=15 evaluate_every=1 "method=$method"
    done
    local one=(digits-mixed model=digitscnn clients=20 rounds=20 evaluate_every=1)
    for method in fedavg fedprox; do train "fedclassavg/20/$method" "${one[@]}" "method=$method"; done
    train fedclassavg/20/fedclassavg "${one[@]}" method.share=all
    draw fedclassavg/figure4 curves fedclassavg/dirichlet
    draw fedclassavg/figure5 curves fedclassavg/skewed
    draw fedclassavg/figure6 curves fedclassavg/20
    draw fedclassavg/figure8 features fedclassavg/dirichlet/local fedclassavg/dirichlet/fedclassavg --samples 600
    draw fedclassavg/figure9 conductance fedclassavg/dirichlet/local fedclassavg/dirichlet/fedclassavg
}

[ $# -gt 1 ] || set -- "$1" ccvr fedetf fedclassavg
for paper in "${@:2}"; do mkdir -p "$paper" && $paper; done
