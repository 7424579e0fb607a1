#!/usr/bin/env bash
# lint.sh BUILD [quick]: format, linters, who includes whom, an op without a test, writable or stray symbols. `quick`
# leaves out clang-tidy, which takes minutes.
set -uo pipefail
build=${1:-build} mode=${2:-full}
failed=0
step() {
  local name=$1
  shift
  if "$@"; then echo "ok   $name"; else echo "FAIL $name" && failed=1; fi
}

sources() { git ls-files '*.c' '*.h' '*.cu' '*.cuh'; }
format() { sources | xargs clang-format --dry-run -Werror; }
lua() { git ls-files '*.lua' | xargs luacheck -q; }
deps() { luajit lua/tool/deps.lua; }
shell() { git ls-files '*.sh' .ci/run | xargs -r bash -n; }

op_tests() { # every op of the catalogue has a file under tests/ops (collectives need threads: tests/c/coll.c)
  local missing=0 op
  for op in $(sed -n 's/^int pl_\([a-z_0-9]*\)(.*/\1/p' core/pl_ops.h); do
    [ -f "tests/ops/$op.lua" ] || grep -q "pl_$op(" tests/c/coll.c || { echo "tests/ops/$op.lua is missing" && missing=1; }
  done
  return $missing
}

writable() { # libpl holds no global state; constant tables with pointers lie in .data.rel.ro
  local found
  found=$(objdump -t "$build/libpl.a" 2>/dev/null | awk '/ O \.(data|bss|tdata|tbss)\t/ {print $NF}' | sort -u)
  [ -z "$found" ] || { echo "writable symbols in libpl:" && echo "$found" && return 1; }
}

exports() { # the program exports the C ABI and nothing else
  local found
  found=$(nm -D --defined-only "$build/perilune" | awk '$3 !~ /^(pl_|malloc_conf|_IO_stdin_used|stdin|stdout|stderr|rl_|__|environ|_?_bss|_edata|_end)/ {print $3}' | sed 's/@.*//')
  [ -z "$found" ] || { echo "exported, but not pl_*:" && echo "$found" && return 1; }
}

readme() { # the recipe that the README shows is the one that runs
  luajit -e 'local function read(p) return assert(io.open(p)):read "*a" end
    os.exit(read("README.md"):find(read("recipes/llama.lua"):gsub("%s+$", ""), 1, true) and 0 or 1)'
}

long_files() { # a file reads in one sitting
  git ls-files '*.c' '*.h' '*.lua' '*.cu' | xargs wc -l | awk '$1 > 700 && $2 != "total" { print $2 ": " $1 " lines"; bad = 1 } END { exit bad }'
}

tidy() { git ls-files 'core/*.c' 'kernels/cpu/*.c' | xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet \
  --extra-arg=-Wno-ignored-optimization-argument 2>/dev/null; }

step format format
step luacheck lua
step deps deps
step shell shell
step op-tests op_tests
step writable-symbols writable
step exports exports
step readme readme
step long-files long_files
[ "$mode" = quick ] || step clang-tidy tidy
exit $failed
