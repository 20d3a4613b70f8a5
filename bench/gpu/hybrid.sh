#!/usr/bin/env bash
# The offload engine on one NVIDIA GPU: study hybrid-cuda, after the exactness tests on the GPU.
#
#   bench/gpu/hybrid.sh
#
# Needs Python 3.11 or later, a CUDA driver, and the pinned wheels, which pip fetches; 60 GB of GPU
# memory and 110 GB of host memory that may be pinned. Everything is installed into this checkout.
# What was measured is copied to bench/results/gpu/, with its provenance. A run that was cut off
# goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi >/dev/null || {
    echo "No nvidia-smi here: this needs an NVIDIA GPU and its driver." >&2
    exit 1
}
make env DEVICE=cuda
export PATH="$PWD/.venv/bin:$PATH" XDG_CACHE_HOME="$PWD/.cache"

python bench/gpu/offload_exact.py
failed=0
snakemake --profile profiles/local --config study=hybrid-cuda || failed=1
kept=bench/results/gpu/hybrid-cuda
if [ -e results/studies/hybrid-cuda/metrics.parquet ]; then
    mkdir -p "$kept"
    cp results/studies/hybrid-cuda/{experiments.csv,metrics.parquet,manifest.json} "$kept"
    cp -r results/studies/hybrid-cuda/figures "$kept"
    {
        echo "command: bench/gpu/hybrid.sh"
        echo "commit: $(git rev-parse HEAD)"
        echo "date: $(date --utc --iso-8601=seconds)"
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max --format=csv
        pip list --disable-pip-version-check --format=freeze | grep -iE '^(torch|nvidia)'
    } >"$kept/provenance.txt"
fi
exit $failed
