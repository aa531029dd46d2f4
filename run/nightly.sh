#!/usr/bin/env bash
# Every test and every mutant, with coverage: one to two hours on two cores. It notes what passed at which commit: after
# an interruption, or a failure, run it again and it goes on. Ends with what is left.
set -euo pipefail
cd "$(dirname "$0")/.."
bash run/setup.sh
bash run/docs.sh build
exec .venv/bin/python -m tests.rings.nightly
