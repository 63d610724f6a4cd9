#!/usr/bin/env bash
# Build, tests on the simulator and on the GPU, conformance and benchmark in one go, for a machine
# that has a GPU, a compiler and the Python packages, and no network.
# Usage: bench/run_on_gpu.sh FOLDER_FOR_RESULTS
set -uo pipefail
out=$(realpath "${1:?usage: bench/run_on_gpu.sh FOLDER_FOR_RESULTS}")
cd "$(dirname "$0")/.."
failed=0
step() {
    printf '\n== %s\n' "$1"
    shift
    "$@" || { failed=1; printf '== failed: %s\n' "$*"; }
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step build python3 -m pip install --quiet --no-index --no-build-isolation --no-deps -e . || exit 1
VMMCY_DRIVER=sim step "tests, simulator" python3 -m pytest -q --junitxml="$out/tests-sim.xml"
VMMCY_DRIVER=cuda VMMCY_CONFORMANCE_REPORT="$out/conformance.json" \
    step "tests, cuda" python3 -m pytest -q --junitxml="$out/tests-cuda.xml"
VMMCY_DRIVER=cuda step benchmark python3 -m vmmcy.bench --json "$out/bench.json"
exit $failed
