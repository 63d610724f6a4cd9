#!/usr/bin/env bash
# Build, and then the steps named, all by default, for a machine that has a GPU, a compiler and the
# Python packages, and no network.
# Usage: bench/run_on_gpu.sh FOLDER_FOR_RESULTS [sim] [cuda] [torch] [kernels] [long] [bench] [outside]
set -uo pipefail
out=$(realpath "${1:?usage: bench/run_on_gpu.sh FOLDER_FOR_RESULTS [STEP ...]}")
shift
wanted=" ${*:-sim cuda torch kernels long bench outside} "
cd "$(dirname "$0")/.."
failed=0
step() {
    printf '\n== %s, %s\n' "$1" "$(date +%T)"
    shift
    "$@" || { failed=1; printf '== failed: %s\n' "$*"; }
}
is_wanted() { [[ $wanted == *" $1 "* ]]; }

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step build python3 -m pip install --quiet --no-index --no-build-isolation --no-deps -e . || exit 1
if is_wanted sim; then
    VMMCY_DRIVER=sim step "tests, simulator" python3 -m pytest -q --junitxml="$out/tests-sim.xml"
fi
export VMMCY_DRIVER=cuda
if is_wanted cuda; then
    VMMCY_CONFORMANCE_REPORT="$out/conformance.json" step "tests, cuda" \
        python3 -m pytest -q --ignore=tests/with_torch --junitxml="$out/tests-cuda.xml"
fi
if is_wanted torch; then
    step "tests, torch" python3 -m pytest -q tests/with_torch --junitxml="$out/tests-torch.xml"
fi
if is_wanted kernels; then
    step "kernels meanwhile" python3 tests/with_torch/kernels_meanwhile.py --turns 1000
fi
if is_wanted long; then
    step "long run" python3 tests/long_run.py --gpu --steps 20000 --threads 16
fi
if is_wanted bench; then
    step benchmark python3 -m vmmcy.bench --json "$out/bench.json"
fi
if is_wanted outside; then
    step "outside the driver" python3 bench/outside_driver.py "$out/outside_driver.json"
fi
exit $failed
