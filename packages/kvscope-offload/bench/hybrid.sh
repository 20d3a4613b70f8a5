#!/usr/bin/env bash
# The offload engine on one NVIDIA GPU: its exactness tests, then study hybrid-cuda.
#
#   packages/kvscope-offload/bench/hybrid.sh [--flexgen]
#
# Needs what overflow.sh needs, with 60 GB of GPU memory and 85 GB of host memory that may be
# pinned. What was measured is copied to bench/results/gpu/hybrid-cuda. With --flexgen, and 100 GB of
# host memory, the published FlexGen serves the workloads of the study, too, as external rows in
# bench/results/gpu/hybrid-cuda/flexgen. Its wheel is fetched into a directory that is removed.
set -euo pipefail
cd "$(dirname "$0")/../../.."

case "${1:-}" in
    "" | --flexgen) ;;
    *) echo "There is no option '$1': packages/kvscope-offload/bench/hybrid.sh [--flexgen]" >&2 && exit 2 ;;
esac
command -v nvidia-smi >/dev/null || {
    echo "No nvidia-smi here: this needs an NVIDIA GPU and its driver." >&2
    exit 1
}

external_rows() {
    local experiment failed=0
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    if ! pip install --quiet --no-deps --target "$place/wheel" flexgen==0.1.8; then
        echo "The wheel flexgen 0.1.8 cannot be had here (pip says why): its rows are left out." >&2
        return
    fi
    kvscope plan study=hybrid-cuda --write "$place/plan" >/dev/null
    for experiment in $(grep -l 'policy: flexgen' "$place"/plan/experiments/*/experiment.yaml); do
        PYTHONPATH="$place/wheel" python packages/kvscope-offload/bench/flexgen_wheel.py "$experiment" \
            --out bench/results/gpu/hybrid-cuda/flexgen || failed=1
    done
    return $failed
}

make env DEVICE=cuda
export PATH="$PWD/.venv/bin:$PATH"
python packages/kvscope-offload/bench/offload_exact.py
failed=0
bench/gpu/overflow.sh hybrid-cuda || failed=1
[ "${1:-}" != --flexgen ] || external_rows || failed=1
exit $failed
