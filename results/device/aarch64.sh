#!/usr/bin/env bash
# Debian 12 for aarch64 in FOLDER, emulated, with WHEEL of fedml-dapper-device and what it depends on, by its own Python and pip.
#   bash results/device/aarch64.sh FOLDER WHEEL [TORCH_VERSION]
# FOLDER/python is that Python then, on the core that CPU names (cortex-a72 if none). Wants Debian 12 with
# python3-pip, and installs nothing in the system.
set -euo pipefail
[[ $# -eq 2 || $# -eq 3 ]] || { echo "usage: bash results/device/aarch64.sh FOLDER WHEEL [TORCH_VERSION]" >&2 && exit 2; }
mkdir -p "$1"
folder=$(realpath "$1") wheel=$(realpath "$2") torch=${3:-2.9.1}

cd "$folder"
mkdir -p apt/lists/partial apt/cache/archives/partial debs root
touch apt/status
grep -rhEv '^#' /etc/apt/sources.list.d/debian.sources | sed '/^Architectures:/d' >apt/debian.sources
cat >apt/apt.conf <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
APT::Install-Recommends "false";
Dir::State "$folder/apt";
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::sourcelist "$folder/apt/debian.sources";
Dir::Etc::sourceparts "-";
Debug::NoLocking "true";
CONF
(cd debs && apt-get download qemu-user-static)
dpkg -x debs/qemu-user-static_*.deb qemu
export APT_CONFIG=$folder/apt/apt.conf
apt-get update -qq
apt-get install -qq -y --download-only python3.11 libstdc++6 libgomp1
for deb in apt/cache/archives/*.deb; do dpkg -x "$deb" root; done
unset APT_CONFIG

cat >python <<SH
#!/bin/sh
export PYTHONPATH=$folder/site
exec $folder/qemu/usr/bin/qemu-aarch64-static -cpu "\${CPU:-cortex-a72}" -L $folder/root $folder/root/usr/bin/python3.11 "\$@"
SH
chmod +x python
python3 -m pip download --quiet --no-deps --dest pip pip
pip=$(echo pip/pip-*.whl)/pip
./python "$pip" install --quiet --no-cache-dir --no-compile --only-binary=:all: --target site "torch==$torch" "$wheel"
./python "$pip" freeze --path site
du -sm root site
