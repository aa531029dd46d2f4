#!/usr/bin/env bash
# One server, all clients and all edges of a cross-silo experiment as processes of this machine; ends with the server's exit code.
#   bash run/silo_processes.sh --cf CONFIG [--cf OVERLAY ...] [--set KEY=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export GRPC_VERBOSITY=${GRPC_VERBOSITY:-ERROR}

ranks=$(.venv/bin/python - "$@" <<'PYTHON'
import sys
from pathlib import Path
from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError

arguments = [argument for argument in sys.argv[1:] if argument not in ("--resume", "--restart")]
options = list(zip(arguments[::2], arguments[1::2]))
try:
    settings = load_settings([Path(v) for k, v in options if k == "--cf"], [v for k, v in options if k == "--set"])
except ConfigError as error:
    sys.exit(f"fedml_dapper: {error}")
print(settings.train_args.client_num_in_total, *(edge.rank for edge in settings.comm_args.edges))
PYTHON
) || exit 2

cleanup() {
    local running
    running=$(jobs -p)
    [[ -z $running ]] || kill $running 2>/dev/null || true
    wait
}
trap cleanup EXIT

read -r clients edges <<<"$ranks"
anew=--restart # all on one machine: what silos signed in an earlier trial guards nothing
[[ " $* " != *" --resume "* ]] || anew=
for rank in $edges; do
    .venv/bin/python -m fedml_dapper --rank "$rank" --role edge "$@" &
done
for rank in $(seq 1 "$clients"); do
    .venv/bin/python -m fedml_dapper --rank "$rank" --role client "$@" $anew &
done
status=0
.venv/bin/python -m fedml_dapper --rank 0 --role server "$@" || status=$?
for _ in $(seq 50); do # clients say goodbye on their own
    [[ -n $(jobs -pr) ]] || break
    sleep 0.2
done
exit "$status"
