#!/usr/bin/env bash
# A bench on a GPU that is there for a quarter of an hour, without a network and without FedML.
#
# Where there is a network, once; for another Python than 3.12 or another machine, set PYTHON_VERSION and PLATFORM:
#   bash benchmarks/gpu_queue.sh --prepare WHEELS
# On the machine with the GPU, each time; what OUT holds from before is gone on with:
#   DAPPER_WHEELS=WHEELS DAPPER_DATA=DATA bash benchmarks/gpu_queue.sh BENCH MINUTES OUT [options of fedml-dapper bench]
#
# The machine has to have torch, torchvision, numpy, scipy, scikit-learn, matplotlib, safetensors, grpcio and jinja2, and
# to be given this repository, WHEELS, and the data of the bench: a few packed files (data/README.md). digits_offline,
# which is drawn on the spot, needs none.
set -euo pipefail
began=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd)

if [[ ${1:-} == --prepare ]]; then
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version "${PYTHON_VERSION:-3.12}" --platform "${PLATFORM:-manylinux_2_28_x86_64}" \
        --platform manylinux2014_x86_64 --constraint "$root/constraints.txt" \
        --requirement "$root/benchmarks/gpu_queue_wheels.txt" --dest "${2:?--prepare needs a folder for the wheels}"
    echo "Take with you: this repository, $2, and the bench's data for DAPPER_DATA."
    exit
fi

site=${DAPPER_WHEELS:+$(realpath "$DAPPER_WHEELS")/installed}
if [[ -n $site && ! -d $site ]]; then
    python3 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$site.$$" \
        "$DAPPER_WHEELS"/*.whl
    mv "$site.$$" "$site"
fi
export PYTHONPATH="${site:+$site:}$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
# CUDA's multi-process service lets kernels of several cells run at the same time, and so more cells be worth it. It stays
# when the bench ends; `echo quit | nvidia-cuda-mps-control` ends it.
if command -v nvidia-cuda-mps-control >/dev/null && [[ ! -e ${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control ]]; then
    nvidia-cuda-mps-control -d >/dev/null 2>&1 </dev/null || echo "gpu_queue: goes on without CUDA's multi-process service" >&2
fi
exec python3 -m benchmarks.gpu_queue --began "$began" "$@"
