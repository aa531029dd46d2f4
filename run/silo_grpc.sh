#!/usr/bin/env bash
# Cross-silo over gRPC on this machine: one server and all clients, each a process.
#   bash run/silo_grpc.sh config/cross_silo.yaml [--set KEY=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 1 ]]; then
    echo "usage: bash run/silo_grpc.sh CONFIG [--set KEY=VALUE ...]" >&2
    exit 2
fi
config=$1
shift
bash run/setup.sh --for-a-run
exec bash run/silo_processes.sh --cf "$config" "$@"
