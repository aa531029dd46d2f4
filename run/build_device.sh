#!/usr/bin/env bash
# Builds the wheel of fedml-dapper-device, which a weak device installs in place of fedml-dapper, into FOLDER.
#   bash run/build_device.sh FOLDER
set -euo pipefail
if [[ $# -ne 1 ]]; then
    echo "usage: bash run/build_device.sh FOLDER" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
bash run/setup.sh --for-a-run
tree=$(mktemp -d) # the build leaves files beside what it builds
trap 'rm -rf "$tree"' EXIT
cp -r fedml_dapper config setup.py pyproject.toml README.md LICENSE "$tree"
DAPPER_DISTRIBUTION=device .venv/bin/python -m pip wheel "$tree" --no-deps --no-build-isolation --quiet \
    --disable-pip-version-check --wheel-dir "$folder"
ls "$folder"/fedml_dapper_device-*.whl
