#!/usr/bin/env bash
# run.sh BUILD: the benchmarks: the machine's limits and the products (bench/linear.c), whole models beside llama.cpp, the
# cache where it is full, and what its integrity costs.
set -euo pipefail
build=${1:-build}
model=$(tools/model.sh smollm2)
export PL_BUILD=$build
ninja -C "$build" --quiet benches
"$build/bench_linear"
"$build/pl-lua" bench/models.lua "$(bench/peer.sh)" "$model"
"$build/pl-lua" bench/saturation.lua "$model"
"$build/bench_verify"
"$build/pl-lua" bench/integrity.lua "$model"
"$build/pl-lua" bench/stall.lua "$model"
