#!/usr/bin/env bash
# Train on CIFAR-10 with a GPU, and draw the papers' figures at full scale (pip install 'fedhead[analysis]'):
#   results/figures/cifar10.sh RUNS [PART ...]       # RUNS: run folder, whose finished runs are reused
#   results/figures/cifar10.sh RUNS labels           # the label distributions alone, in a few minutes on a CPU
# Parts: labels, ccvr, fedetf (without Figure 6), fedclassavg (without Figures 6 and 7). They replace the figures of digits.sh in
# this folder: revise their texts in docs/papers/. SCALE=small tries it on the digits, and draws into RUNS/figures.
set -euo pipefail
scale=${SCALE:-full}
runs=$(realpath -m "$1")
cd "$(dirname "$0")"
here=$PWD
if [ "$scale" = full ]; then precision=bf16 rounds=1,50 collapse=1,10,20,30,40; else precision=fp32 rounds=1,3 collapse=1,3 here=$runs/figures; fi

train() { # NAME TABLE CELLS [OPTION ...]: the table's first seed, on its split
    fedhead reproduce "$2" --cells "$3" "${@:4}" --seeds 1 --scale "$scale" --precision $precision --out "$runs/$1"
}
iid() { # NAME RECIPE
    local settings=("$2")
    [ "$scale" = full ] || settings=(digits model=digitscnn partition=iid)
    [ -f "$runs/$1/result.json" ] || fedhead run "${settings[@]}" --precision $precision --out "$runs/$1" --resume --quiet
}
run() { # NAME METHOD: the run of a method
    cd "$runs" && echo "$1"/runs/*"$2"-????????/seed-*
}
draw() { # FIGURE KIND RUN ... [OPTION ...]
    (cd "$runs" && fedhead figure "${@:2}" --out "$here/$1.svg")
}

ccvr() { # Dirichlet(0.1)
    train ccvr/runs ccvr/table2 "cifar10-0.1 fedavg before,cifar10-0.1 fedprox before,cifar10-0.1 moon before"
    iid ccvr/iid ccvr-iid
    local fedavg fedprox moon
    fedavg=$(run ccvr/runs fedavg) fedprox=$(run ccvr/runs fedprox) moon=$(run ccvr/runs moon)
    draw ccvr/figure1 cka "$fedavg" ccvr/iid
    draw ccvr/figure3 norms "$fedavg" --rounds $rounds
    draw ccvr/figure5 embed "$fedavg"
    draw ccvr/figure6 separability "$fedavg" "$fedprox" "$moon"
    draw ccvr/figure8 inversion "$fedavg"
    draw ccvr/figure11 cka "$fedavg" "$fedprox" "$moon" && rm "$here/ccvr/figure11.svg"  # the maps are Figure 1's
    draw ccvr/figure12 norms "$moon" --rounds $rounds
    draw ccvr/figure13 embed "$moon"
}

fedetf() { # three of the ten methods, without the clients' fine-tuning
    local alpha method
    for alpha in 0.1 0.05; do
        for method in fedavg fedrod fedetf; do
            train "fedetf/$alpha" fedetf/table1 "$method cifar10-$alpha general"
        done
    done
    iid fedetf/iid fedetf-iid
    draw fedetf/figure1 classifiers fedetf/iid "$(run fedetf/0.1 fedavg)" "$(run fedetf/0.05 fedavg)"
    draw fedetf/figure4 learning fedetf/0.05
    draw fedetf/figure5 collapse "$(run fedetf/0.05 fedavg)" "$(run fedetf/0.05 fedetf)" --rounds $collapse
    draw fedetf/figure8 learning fedetf/0.1
}

fedclassavg() { # 20 clients of four architectures, at the best round by validation loss
    local kind
    for kind in dirichlet skewed; do
        train "fedclassavg/$kind" fedclassavg/table2 \
            "cifar10-$kind local,cifar10-$kind fedproto,cifar10-$kind fedclassavg" --variants validated
    done
    local all=fedclassavg/dirichlet
    draw fedclassavg/figure4 curves $all
    draw fedclassavg/figure5 curves fedclassavg/skewed
    draw fedclassavg/figure8 features "$(run $all local)" "$(run $all fedclassavg)" --samples 2000
    draw fedclassavg/figure9 conductance "$(run $all local)" "$(run $all fedclassavg)"
}

labels() { # label distributions of all three: one round of FedAvg with a small network, as only the split is drawn
    local kind alpha model=simplecnn precision=fp32
    [ "$scale" = full ] || model=digitscnn
    local quick=(rounds=1 local_epochs=1 evaluate_every=1 method=fedavg model=$model)
    train labels/ccvr ccvr/table2 "cifar10-0.1 fedavg before" "${quick[@]}"
    for alpha in 0.1 0.05; do
        train "labels/$alpha" fedetf/table1 "fedavg cifar10-$alpha general" "${quick[@]}" last_rounds=1
    done
    for kind in dirichlet skewed; do
        train "labels/$kind" fedclassavg/table2 "cifar10-$kind fedclassavg" "${quick[@]}"
    done
    draw ccvr/figure15 labels "$(run labels/ccvr fedavg)"
    draw fedetf/figure7 labels "$(run labels/0.1 fedavg)" "$(run labels/0.05 fedavg)"
    draw fedclassavg/figure2 labels "$(run labels/dirichlet fedavg)" "$(run labels/skewed fedavg)"
}

[ $# -gt 1 ] || set -- "$1" labels ccvr fedetf fedclassavg
mkdir -p "$here"/{ccvr,fedetf,fedclassavg}
for part in "${@:2}"; do $part; done
