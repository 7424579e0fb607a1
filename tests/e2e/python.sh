#!/usr/bin/env bash
# python.sh SCRIPT [ARG...]: runs a Python script of this directory in a virtual environment of the build directory, which has
# what requirements.txt names. What cannot be installed is a failure, not a test left out.
set -euo pipefail
build=${PL_BUILD:-build} here=$(dirname "$0")
venv=$build/e2e-venv
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$venv/installed.txt"
fi
PL_BUILD=$build PL_MODEL=$(tools/model.sh smollm2) exec "$venv/bin/python" -B "$here/$1" "${@:2}"
