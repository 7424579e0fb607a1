#!/usr/bin/env bash
# peer.sh [TOOL]: prints the path of llama.cpp's llama-bench (or llama-batched-bench, llama-server) in the user's cache,
# building it first if need be: from the source that the Python package llama-cpp-python carries (fetched by name), for
# this machine. On a machine with AMX clang is used: gcc 12's AMX intrinsics crash it.
set -euo pipefail
version=0.3.36 tool=${1:-llama-bench}
root=${XDG_CACHE_HOME:-$HOME/.cache}/perilune/llama.cpp-$version
if [ ! -x "$root/build/bin/$tool" ]; then
  echo "Building llama.cpp (Python package llama-cpp-python $version) into $root; this takes a while" >&2
  mkdir -p "$root"
  python3 -m venv "$root/venv" >&2
  "$root/venv/bin/pip" download -q --no-deps --no-binary :all: "llama-cpp-python==$version" -d "$root" >&2
  tar -C "$root" -xzf "$root/llama_cpp_python-$version.tar.gz"
  compiler=(-DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++)
  if grep -qw amx_tile /proc/cpuinfo; then compiler=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++); fi
  cmake -G Ninja -S "$root/llama_cpp_python-$version/vendor/llama.cpp" -B "$root/build" "${compiler[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF >"$root/cmake.log"
  ninja -C "$root/build" "$tool" >"$root/ninja.log"
fi
echo "$root/build/bin/$tool"
