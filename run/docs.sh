#!/usr/bin/env bash
# The site of docs/: `bash run/docs.sh build` writes it to site/, `bash run/docs.sh serve` shows it at 127.0.0.1:8000 and follows
# your changes. The first call makes .venv-docs; after that nothing is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-docs/installed
if [[ ! -f $stamp ]] || ! cmp --silent "$stamp" docs/site/requirements.txt; then
    echo "Installing what makes the site into .venv-docs (about 150 MB) ..." >&2
    .venv-docs/bin/python -m pip --version &>/dev/null || "$(command -v python3.11 || command -v python3)" -m venv .venv-docs
    .venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/site/requirements.txt
    cp docs/site/requirements.txt "$stamp"
fi

export NO_MKDOCS_2_WARNING=1 # about its successor
case ${1:-} in
build) .venv-docs/bin/python -m mkdocs build ;;
serve) exec .venv-docs/bin/python -m mkdocs serve "${@:2}" ;;
*) echo "usage: bash run/docs.sh build | serve [--dev-addr HOST:PORT]" >&2 && exit 2 ;;
esac
