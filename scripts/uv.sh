#!/bin/sh
# Runs uv, which makes virtual environments and installs packages from PyPI in a tenth of pip's time: scripts/uv.sh ARGUMENTS...
# The first call installs it below build/uv.
set -eu
folder=$(dirname "$0")/../build/uv
uv=$folder/bin/uv
if ! "$uv" --version >/dev/null 2>&1; then
  mkdir -p "$folder"
  flock "$folder" sh -ec '"$1/bin/uv" --version >/dev/null 2>&1 || {
    "${PYTHON:-python3}" -m venv "$1"
    "$1/bin/pip" install -q --no-compile --disable-pip-version-check "uv==0.13.*"
  }' sh "$folder" >&2
fi
exec "$uv" --quiet "$@"
