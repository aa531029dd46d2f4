#!/usr/bin/env bash
# A server and three devices, of which those of the named RANKs run on AARCH64 (the file `python` that aarch64.sh has made).
#   bash results/device/federate.sh RUN [--aarch64 RANK ...] [SETTING=VALUE ...]
# Run it where experiment.yaml, pictures and certs lie. RUN gets the logs, the server's run and the devices' uploads;
# PROGRAM="-m fedml_dapper.device.entry", which is dapper-device, leaves the uploads out.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
run=$1 emulated=() overrides=()
shift
for word in "$@"; do
    case $word in
    --aarch64) ;;
    *=*) overrides+=(--set "$word") ;;
    *) emulated+=("$word") ;;
    esac
done
x86=${PYTHON:-$root/.venv/bin/python}
program=${PROGRAM:-$root/results/device/record_uploads.py}
export OMP_NUM_THREADS=1 GRPC_VERBOSITY=ERROR WANDB_MODE=disabled UPLOADS=$run/uploads
mkdir -p "$run"

PYTHONPATH=$root timeout 1500 "$x86" -m fedml_dapper --cf experiment.yaml --rank 0 --role server --output "$run/server" \
    ${overrides[@]+"${overrides[@]}"} >"$run/server.log" 2>&1 &
started=($!)
trap 'kill "${started[@]}" 2>/dev/null || true' EXIT # where one fails, the others do not wait for it
for rank in 1 2 3; do
    python=$x86
    [[ " ${emulated[*]-} " != *" $rank "* ]] || python=$AARCH64
    # shellcheck disable=SC2086  # PROGRAM may be two words
    PYTHONPATH=$root timeout 1500 "$python" $program run experiment.yaml --rank "$rank" --output "$run/silo-$rank" \
        ${overrides[@]+"${overrides[@]}"} >"$run/device_$rank.log" 2>&1 &
    started+=($!)
done
for process in "${started[@]}"; do wait "$process"; done
sed -i "s#$PWD/##g" "$run"/*.log
