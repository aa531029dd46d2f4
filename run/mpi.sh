#!/usr/bin/env bash
# FedML's MPI simulation, on this machine or several: rank 0 serves, the other ranks train the clients.
#   bash run/mpi.sh config/quickstart.yaml -n 3 [--set KEY=VALUE ...]
#   bash run/mpi.sh config/quickstart.yaml -n 161 --hosts hosts.txt [--set KEY=VALUE ...]
# hosts.txt is mpiexec's host file: a line NAME:RANKS per machine. docs/runners.md says what each machine needs.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 3 || $2 != -n ]]; then
    echo "usage: bash run/mpi.sh CONFIG -n RANKS [--hosts FILE] [--set KEY=VALUE ...]" >&2
    exit 2
fi
config=$1 where=(-n "$3")
shift 3
if [[ ${1:-} == --hosts ]]; then
    if [[ ! -f ${2:-} ]]; then
        echo "run/mpi.sh: no host file ${2:-is named}; it has a line NAME:RANKS per machine" >&2
        exit 2
    fi
    where+=(-f "$2")
    shift 2
fi
bash run/setup.sh
exec .venv/bin/mpiexec "${where[@]}" .venv/bin/python -m fedml_dapper --cf "$config" --set comm_args.backend=MPI "$@"
