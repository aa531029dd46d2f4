#!/usr/bin/env bash
# Cross-silo over MQTT and an object store on this machine: starts mosquitto and moto's S3 server for the trial, on
# loopback and with nothing kept, then one server and all clients.
#   bash run/silo_mqtt.sh config/cross_silo.yaml [--set KEY=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -lt 1 ]]; then
    echo "usage: bash run/silo_mqtt.sh CONFIG [--set KEY=VALUE ...]" >&2
    exit 2
fi
config=$1
shift
broker=$(command -v mosquitto || ls /usr/sbin/mosquitto 2>/dev/null || true)
if [[ -z $broker ]]; then
    echo "run/silo_mqtt.sh: no mosquitto on this machine; on Debian: apt-get install mosquitto" >&2
    exit 2
fi
bash run/setup.sh

scratch=$(mktemp -d)
cleanup() {
    kill $(jobs -p) 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap cleanup EXIT

mqtt_port=${DAPPER_MQTT_PORT:-18830} s3_port=${DAPPER_S3_PORT:-19000}
printf 'listener %s 127.0.0.1\nallow_anonymous true\npersistence false\n' "$mqtt_port" >"$scratch/mosquitto.conf"
"$broker" -c "$scratch/mosquitto.conf" >"$scratch/mosquitto.log" 2>&1 &
.venv/bin/moto_server -H 127.0.0.1 -p "$s3_port" >"$scratch/s3.log" 2>&1 &
.venv/bin/python run/make_bucket.py "http://127.0.0.1:$s3_port"

bash run/silo_processes.sh --cf "$config" --cf config/mqtt.yaml \
    --set "comm_args.customized_training_mqtt_config.BROKER_PORT=$mqtt_port" \
    --set "comm_args.customized_training_s3_config.CN_S3_ENDPOINT=http://127.0.0.1:$s3_port" "$@"

left=$(.venv/bin/python run/make_bucket.py --count "http://127.0.0.1:$s3_port")
echo "objects left in the store: $left"
