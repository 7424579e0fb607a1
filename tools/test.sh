#!/usr/bin/env bash
# test.sh BUILD: all tests. Fetches the models of the goldens first where ../shared has those (they need the network
# once); without them the tests say what they skipped.
set -uo pipefail
build=${1:-build}
if [ -d ../shared/golden ]; then
  for m in smollm2 gemma3-270m qwen2.5-coder-0.5b; do
    tools/model.sh $m >/dev/null || exit 1
  done
else
  tools/model.sh smollm2 >/dev/null || exit 1
fi
ctest --test-dir "$build" --output-on-failure -j2 # two at a time: most wait for a process or a socket at some time
