#!/usr/bin/env bash
# nvcc.sh NVCC ARGS...: compiles one .cu file and prints the registers of its kernels, one column an architecture. A
# spill is an error (ptxas says in which kernel), and so is every warning.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$@" -Werror all-warnings -Xptxas -v,--warn-on-spills,--warning-as-error >"$log" 2>&1; then
  grep -v '^ptxas info' "$log" >&2
  exit 1
fi
grep -v '^ptxas info\|bytes stack frame' "$log" >&2
awk -F"'" '
  /Compiling entry function/ { name = $2; arch = $4; if (!(arch in seen)) { seen[arch] = 1; archs = archs " " arch } }
  /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); regs[name] = regs[name] " " substr($0, RSTART + 5, RLENGTH - 5) }
  END { for (n in regs) print n, "registers" regs[n], "(" substr(archs, 2) ")" }' "$log" | sort | c++filt | sed 's/(.*) registers/ registers/; s/^void //'
