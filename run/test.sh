#!/usr/bin/env bash
# Style, types, spelling and the tests of seconds, on all cores. Arguments go to pytest, e.g. bash run/test.sh tests/pruning
set -euo pipefail
cd "$(dirname "$0")/.."
bash run/setup.sh

declare -A checks
beside() { # runs while the tests do, and says what it found when it ends, each line under its name
    "${@:2}" 2>&1 | sed "s/^/$1: /" &
    checks[$1]=$!
}
beside "ruff check" .venv/bin/ruff check .
beside "ruff format" .venv/bin/ruff format --check .
beside mypy .venv/bin/mypy
beside spelling .venv/bin/codespell ./*.md docs fedml_dapper config run data/README.md benchmarks examples

export PYTHONDONTWRITEBYTECODE='' # hundreds of processes import the same
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # there is a process a core already
failed=()
.venv/bin/pytest --numprocesses auto --dist worksteal --seconds "$@" || failed=(tests)
for name in "${!checks[@]}"; do
    wait "${checks[$name]}" || failed+=("$name")
done
if ((${#failed[@]})); then
    printf 'run/test.sh: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
    exit 1
fi
