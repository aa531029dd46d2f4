#!/usr/bin/env bash
# Makes .venv-peers/NAME for simulators that do not live in .venv; each looks there for torch and what else it does not
# bring. Wants a network; takes 300 MB. Removing .venv-peers undoes it.
#   bash benchmarks/peers/setup.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
make() { # NAME REQUIREMENT
    local home=.venv-peers/$1
    [[ -x $home/bin/python ]] || .venv/bin/python -m venv --without-pip "$home"
    echo "$site" >"$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_package.pth"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$2"
}
make pfl pfl==0.6.0
make flower 'flwr[simulation]==1.42.0'
