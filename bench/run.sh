#!/usr/bin/env bash
# run.sh BUILD: the benchmarks: the machine's limits and the products (bench/linear.c), then whole models beside llama.cpp.
set -euo pipefail
build=${1:-build}
"$build/bench_linear"
PL_BUILD=$build "$build/pl-lua" bench/models.lua "$(bench/peer.sh)" "$(tools/model.sh smollm2)"
