#!/usr/bin/env bash
# kvscope's CUDA attention on one NVIDIA GPU: equality with vLLM's, speed, and what recording costs.
#
#   bench/gpu/events.sh [OPTION …]        those of bench/gpu/events.py
#
# Needs Python 3.11 or later, a CUDA driver, and the pinned wheels, which pip fetches; 40 GB of GPU
# memory. Everything is installed into this checkout. Takes about ten minutes, and writes
# bench/results/events-gpu.json.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi >/dev/null || {
    echo "No nvidia-smi here: this needs an NVIDIA GPU and its driver. Without one," >&2
    echo "python bench/gpu/events.py --rehearse tries the script itself." >&2
    exit 1
}
make env DEVICE=cuda
export PATH="$PWD/.venv/bin:$PATH" XDG_CACHE_HOME="$PWD/.cache" VLLM_CACHE_ROOT="$PWD/.cache/vllm"
export TRITON_CACHE_DIR="$PWD/.cache/triton"
exec python bench/gpu/events.py "$@"
