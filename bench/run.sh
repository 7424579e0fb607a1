#!/usr/bin/env bash
# run.sh BUILD: the benchmarks: the kernels beside the machine's limits, whole models and the server beside llama.cpp's,
# the cache where it is full, and what its integrity costs.
set -euo pipefail
build=${1:-build}
model=$(tools/model.sh smollm2)
export PL_BUILD=$build
ninja -C "$build" --quiet benches
"$build/perilune" bench kernels
"$build/perilune" bench models "$model" --peer "$(bench/peer.sh)" --csv bench/results/models.csv
ACT=bf16,int8 "$build/pl-lua" bench/serve.lua "$model" "$(bench/peer.sh llama-server)"
"$build/pl-lua" bench/saturation.lua "$model"
"$build/bench_verify"
"$build/pl-lua" bench/integrity.lua "$model"
"$build/pl-lua" bench/stall.lua "$model"
