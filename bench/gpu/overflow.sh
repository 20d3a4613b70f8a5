#!/usr/bin/env bash
# The overflow and batching studies on one NVIDIA GPU, with Llama-2-7B and OPT-13B dimensions.
#
#   bench/gpu/overflow.sh [STUDY …]        default: overflow-cuda batching-cuda
#
# Needs Python 3.11 or later, a CUDA driver, and the pinned wheels, which pip fetches; 40 GB of GPU
# memory and 48 GB of host memory. Everything is installed into this checkout. What was measured is
# copied to bench/results/gpu/, with its provenance. A run that was cut off goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi >/dev/null || {
    echo "No nvidia-smi here: this needs an NVIDIA GPU and its driver." >&2
    exit 1
}
studies=("$@")
[ ${#studies[@]} -gt 0 ] || studies=(overflow-cuda batching-cuda)

make env DEVICE=cuda
export PATH="$PWD/.venv/bin:$PATH" XDG_CACHE_HOME="$PWD/.cache" VLLM_CACHE_ROOT="$PWD/.cache/vllm"

failed=0
for study in "${studies[@]}"; do
    snakemake --profile profiles/local --config "study=$study" || failed=1
    [ -e "results/studies/$study/metrics.parquet" ] || continue
    kept="bench/results/gpu/$study"
    mkdir -p "$kept"
    cp "results/studies/$study/"{experiments.csv,metrics.parquet,manifest.json} "$kept"
    cp -r "results/studies/$study/figures" "$kept"
    {
        echo "command: bench/gpu/overflow.sh $study"
        echo "commit: $(git rev-parse HEAD)"
        echo "date: $(date --utc --iso-8601=seconds)"
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max --format=csv
        pip list --disable-pip-version-check --format=freeze | grep -iE '^(vllm|torch|flash|triton|nvidia)'
    } >"$kept/provenance.txt"
done
exit $failed
