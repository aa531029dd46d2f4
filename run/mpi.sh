#!/usr/bin/env bash
# FedML's MPI simulation on this machine: rank 0 serves, the other ranks train the clients.
#   bash run/mpi.sh config/quickstart.yaml -n 3 [--set KEY=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 3 || $2 != -n ]]; then
    echo "usage: bash run/mpi.sh CONFIG -n RANKS [--set KEY=VALUE ...]" >&2
    exit 2
fi
config=$1 ranks=$3
shift 3
bash run/setup.sh
exec .venv/bin/mpiexec -n "$ranks" .venv/bin/python -m fedml_dapper --cf "$config" --set comm_args.backend=MPI "$@"
