#!/usr/bin/env bash
# Style, types and tests, on all cores. Arguments go to pytest, e.g. bash run/test.sh tests/pruning
set -euo pipefail
cd "$(dirname "$0")/.."
bash run/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # there is a process a core already
.venv/bin/pytest --numprocesses auto --dist worksteal "$@"
