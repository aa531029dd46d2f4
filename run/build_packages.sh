#!/usr/bin/env bash
# The client and the server package of run/launch/job.yaml, as `fedml launch` uploads them, without network or account.
#   bash run/build_packages.sh OUT_DIR [CONFIG]     CONFIG: a cross-silo experiment; default: config/cross_silo.yaml
set -euo pipefail
if [[ $# -lt 1 || $# -gt 2 ]]; then
    echo "usage: bash run/build_packages.sh OUT_DIR [CONFIG]" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "$1") config=$(realpath -m "${2:-$root/config/cross_silo.yaml}")
cd "$root"
[[ -x .venv/bin/fedml ]] || bash run/setup.sh

scratch=$(mktemp -d) # FedML writes beside job.yaml, below HOME and into the temporary folder
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/tmp"
cp run/launch/job.yaml "$scratch"
.venv/bin/python run/launch/fill_workspace.py "$config" "$scratch/workspace"

mkdir -p "$out"
rm -f "$out/client-package.zip" "$out/server-package.zip"
if ! HOME=$scratch TMPDIR=$scratch/tmp .venv/bin/fedml federate build -d "$out" "$scratch/job.yaml" \
    >"$scratch/build.log" 2>&1 || [[ ! -s $out/client-package.zip || ! -s $out/server-package.zip ]]; then
    cat "$scratch/build.log" >&2
    echo "run/build_packages.sh: FedML made no packages; what it said is above" >&2
    exit 1
fi
echo "$out/client-package.zip"
echo "$out/server-package.zip"
