#!/usr/bin/env bash
# Installs the Debian packages that building and testing need. Says so first; does nothing where they are all there.
# Without root and without sudo it prints the command to run and stops.
set -euo pipefail

packages=(gcc g++ cmake ninja-build pkg-config luajit libluajit-5.1-dev libjemalloc-dev libpcre2-dev libutf8proc-dev
  libjansson-dev libsodium-dev libxxhash-dev libedit-dev libmicrohttpd-dev libcurl4-openssl-dev lua-cjson-dev lua-argparse check python3 python3-venv curl ca-certificates)
# what only developers need: `tools/setup.sh dev`
if [ "${1:-}" = dev ]; then
  packages+=(clang clang-format clang-tidy llvm libclang-rt-14-dev lua-check)
fi

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "perilune: not a Debian system; these packages (or their like) are needed: ${missing[*]}" >&2
  exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
  sudo=()
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  sudo=(sudo)
else
  echo "perilune: Debian packages are missing, and installing them needs root. As root, run:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "Installing Debian packages: ${missing[*]}"
# Use-Pty=0: without a terminal of its own, so that it is silent in a container or chroot too
"${sudo[@]}" apt-get update -qq &&
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 \
    "${missing[@]}" >/dev/null || {
  echo "perilune: the packages could not be installed" >&2
  exit 1
}
