#!/usr/bin/env bash
# Makes .venv with the tested versions. Once it is there, later calls install nothing and need no network.
#   bash run/setup.sh                everything; what --light left out is added
#   bash run/setup.sh --light        what a run needs, without the developers' tools and the extras of setup.py
#   bash run/setup.sh --for-a-run    for scripts: an environment that is light stays so, else everything
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(cat setup.py constraints.txt | sha256sum)
stamp=.venv/installed
found=
[[ ! -f $stamp ]] || found=$(<"$stamp")
light=
case ${1:-} in
'') ;;
--light) light=" light" ;;
--for-a-run) [[ $found != *" light" ]] || light=" light" ;;
*) echo "usage: bash run/setup.sh [--light | --for-a-run]" >&2 && exit 2 ;;
esac
if [[ $found == "$wanted" || $found == "$wanted$light" ]]; then
    exit 0
fi

python=$(command -v python3.11 || command -v python3 || true)
if [[ -z $python ]] || ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))'; then
    echo "run/setup.sh: needs Python 3.11 (3.10 and 3.12 may do); found ${python:-none}. Install it and run this again." >&2
    exit 2
fi

# without pip where making it broke off, as on a Debian without python3-venv
.venv/bin/python -m pip --version &>/dev/null || "$python" -m venv .venv
install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile)
if [[ -n $light ]]; then
    echo "Installing what a run needs into .venv (about 6 GB, 4 of them torch's GPU libraries; a few minutes, once) ..."
    if [[ ${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-} != */cpu* ]]; then
        echo "Without a GPU it can do without these 4, where pip can reach torch's own index: stop this, delete .venv, and give"
        echo "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu bash run/setup.sh --light"
    fi
    "${install[@]}" --constraint constraints.txt --editable .
else
    echo "Installing into .venv (about 6 GB with torch's GPU libraries; a few minutes, once) ..."
    unneeded='^#'
    [[ -z $(compgen -G '.venv/lib/python*/site-packages/torch-*+cpu.dist-info') ]] || unneeded='^#|^nvidia-|^cuda-|^triton=='
    if [[ $(uname -sm) == "Linux x86_64" ]]; then # pip keeps one core busy; what goes wrong here does so below, and is said
        grep -vE "$unneeded" constraints.txt | xargs -P "$(nproc)" -n 20 "${install[@]}" --no-deps 2>/dev/null || true
    fi
    "${install[@]}" --constraint constraints.txt --editable '.[dev]'
fi
# what a run imports is compiled now, also where Python is told to keep no bytecode
PYTHONDONTWRITEBYTECODE='' .venv/bin/python -W ignore -c \
    'import fedml, torch_pruning, fedml_dapper.commands.experiment, fedml_dapper.evaluation.report' >/dev/null
echo "$wanted$light" >"$stamp"
