#!/usr/bin/env bash
# check.sh: everything that has a verdict: lint, tests, tests under ASan and UBSan and under TSan (the threaded ones), all
# modes of the CUDA kernels on the CPU, the fuzzers for a while. About two hours on two cores; what fails is listed at the
# end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
failed=()
step() {
  echo "== $1"
  shift
  "$@" || failed+=("$*")
}
# many LINES: a command each, one a core at a time; each prints a line at its end
many() { printf '%s\n' "$@" | xargs -P "$(nproc)" -d '\n' -n 1 bash -c; }
# models of the cache, 10^8 operations in all, and damaged chat templates, 10^6 in all; a failure names its seed
long_ones() {
  local lines=("env PL_MODEL_OPS=100000000 build/test_model_tier") part first
  for first in 1 250001 500001 750001; do lines+=("build/pl-lua tests/fuzz/templates.lua 250000 $first"); done
  for part in kv prefix sched; do lines+=("env PL_MODEL_OPS=100000000 build/test_model_$part"); done
  many "${lines[@]}"
}
tools/setup.sh dev || exit 1
step "lint" tools/lint.sh build
step "tests" make --no-print-directory test
step "models of the cache, damaged chat templates" long_ones
step "a prompt of 30,000 tokens beside decodes" env PL_LONG=30000 build/pl-lua tests/lua/stall.lua
step "build with ASan and UBSan" make --no-print-directory asan
step "tests under ASan and UBSan" env ASAN_OPTIONS=detect_leaks=1 ctest --test-dir build-asan --output-on-failure -j2
step "damaged models under ASan and UBSan" env ASAN_OPTIONS=detect_leaks=1 build-asan/pl-lua tests/fuzz/models.lua 1000
step "build with TSan" make --no-print-directory tsan
step "tests under TSan" ctest --test-dir build-tsan --output-on-failure -j2 -R '^c/(linear|attend|engine|coll|mail|kv|tier|tok|http|packed|embedding|products|threads)'
[ -x tests/gpu/simt_all ] && step "CUDA kernels on the CPU, all modes" tests/gpu/simt_all
step "fuzzing" tests/fuzz/run short
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "everything passed"
