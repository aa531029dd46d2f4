#!/usr/bin/env bash
# The main job: DapperFL from a slim download, on ten devices of five capability levels over four image domains. Needs Python 3.11 only.
# Further arguments go to `fedml-dapper run`, e.g. bash run/quickstart.sh --set comm_round=5
set -euo pipefail
cd "$(dirname "$0")/.."
bash run/setup.sh --for-a-run
exec .venv/bin/fedml-dapper run -c config/quickstart.yaml "$@"
