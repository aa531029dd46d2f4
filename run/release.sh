#!/usr/bin/env bash
# Builds wheel and source archive in dist/, and tries the wheel as a user would: alone, in an environment of its own.
#   bash run/release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
bash run/setup.sh
version=$(.venv/bin/python -c 'import fedml_dapper; print(fedml_dapper.__version__)')
if ! grep -q "^## $version\$" CHANGELOG.md; then
    echo "run/release.sh: CHANGELOG.md has no lines about version $version" >&2
    exit 2
fi
if [[ -n $(git status --porcelain) ]]; then
    echo "run/release.sh: there are changes that are not committed; a release is of a commit" >&2
    exit 2
fi

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
git archive --prefix=source/ HEAD | tar -x -C "$trial" # nothing that git does not know gets in
.venv/bin/python -m build --outdir dist "$trial/source"

.venv/bin/python -m venv "$trial/venv"
"$trial/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    "dist/fedml_dapper-$version-py3-none-any.whl"
cd "$trial"
venv/bin/fedml-dapper --version
venv/bin/fedml-dapper run -c quickstart.yaml
echo "Built dist/fedml_dapper-$version-py3-none-any.whl and dist/fedml_dapper-$version.tar.gz; tag the commit v$version."
