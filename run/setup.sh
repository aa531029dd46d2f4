#!/usr/bin/env bash
# Makes .venv with the tested versions. Once it is there, later calls install nothing and need no network.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(cat setup.py constraints.txt | sha256sum)
stamp=.venv/installed
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

python=$(command -v python3.11 || command -v python3 || true)
if [[ -z $python ]] || ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))'; then
    echo "run/setup.sh: needs Python 3.11 (3.10 and 3.12 may do); found ${python:-none}. Install it and run this again." >&2
    exit 2
fi

echo "Installing into .venv (about 6 GB with torch's GPU libraries; a few minutes, once) ..."
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile)
if [[ $(uname -sm) == "Linux x86_64" ]]; then # pip keeps one core busy; what goes wrong here does so below, and is said
    grep -v '^#' constraints.txt | xargs -P "$(nproc)" -n 20 "${install[@]}" --no-deps 2>/dev/null || true
fi
"${install[@]}" --constraint constraints.txt --editable '.[dev]'
# what a run imports is compiled now, also where Python is told to keep no bytecode
PYTHONDONTWRITEBYTECODE='' .venv/bin/python -W ignore -c \
    'import fedml, torch_pruning, fedml_dapper.commands.experiment, fedml_dapper.evaluation.report' >/dev/null
echo "$wanted" >"$stamp"
