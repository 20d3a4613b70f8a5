#!/usr/bin/env bash
# The offload engine on one NVIDIA GPU: its exactness tests, then study hybrid-cuda.
#
#   bench/gpu/hybrid.sh
#
# Needs what overflow.sh needs, with 60 GB of GPU memory and 85 GB of host memory that may be
# pinned. What was measured is copied to bench/results/gpu/hybrid-cuda.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi >/dev/null || {
    echo "No nvidia-smi here: this needs an NVIDIA GPU and its driver." >&2
    exit 1
}
make env DEVICE=cuda
PATH="$PWD/.venv/bin:$PATH" python bench/gpu/offload_exact.py
exec bench/gpu/overflow.sh hybrid-cuda
