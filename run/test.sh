#!/usr/bin/env bash
# Style, types and tests, on all cores. Arguments go to pytest, e.g. bash run/test.sh tests/pruning
set -euo pipefail
cd "$(dirname "$0")/.."
timed() { # its time is said under a name
    local TIMEFORMAT="--- $1: %0R s"
    time "${@:2}"
}
timed setup bash run/setup.sh
timed ruff .venv/bin/ruff check .
timed "ruff format" .venv/bin/ruff format --check .
timed mypy .venv/bin/mypy
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # there is a process a core already
timed tests .venv/bin/pytest --numprocesses auto --dist worksteal "$@"
