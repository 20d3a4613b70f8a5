#!/usr/bin/env bash
# kvscope on one NVIDIA GPU in less than fifteen minutes: what works there, and what it costs.
#
#   bench/gpu/smoke.sh [STEP …]              facts copies offloading kernels recording engine study
#                                            server offload profiler
#   bench/gpu/smoke.sh --rehearse [STEP …]   without a GPU: on one made of the CPU, in small
#
# It takes the environment of `make env DEVICE=cuda`. Where there is none, as on a machine without a
# network, it takes PACK (.gpu or bench/gpu/pack), a directory that bench/gpu/make_pack.sh makes
# elsewhere, and the PyTorch for CUDA of PYTHON (python3).
#
# Results are four files in OUT (bench/results/gpu/DATE-GPU): report.txt, which says first what
# failed, report.json, log.txt and runs.tar.xz. A step that fails stops no other; the exit status is
# 0 if none did. TOTAL_S (900) is the whole's limit, WORK (/tmp/kvscope-smoke-UID) is where it works.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD began=$SECONDS
UNPACK_S=30 REPORT_S=15 # the limits of the other steps are in smoke/steps.py
TOTAL_S=${TOTAL_S:-900}
command="bench/gpu/smoke.sh${*:+ $*}"
rehearse='' && [ "${1:-}" != --rehearse ] || { rehearse=1 && shift; }

known="facts copies offloading kernels recording engine study server offload profiler"
die() { echo "$*" >&2; exit 2; }
left() { echo $((TOTAL_S - (SECONDS - began) - ${1:-0})); }

for step; do
    [[ " $known " == *" $step "* ]] || die "There is no step '$step': $known."
done

work=${WORK:-/tmp/kvscope-smoke-$UID}
[ ! -e "$work" ] || [ -e "$work/.smoke" ] || die "$work is not of an earlier call: name another, WORK=…"
rm -rf "$work" && mkdir -p "$work/tmp" && : >"$work/.smoke" || die "Cannot work in $work: name another, WORK=…"

find_pack() {
    for pack in ${PACK:+"$PACK"} .gpu bench/gpu/pack; do
        [ ! -d "$pack/wheels" ] || return 0
    done
    return 1
}

has_vllm_for_cuda() { [ -x .venv/bin/python ] && .venv/bin/python -I -c '
from importlib.metadata import version
version("vllm")' 2>/dev/null; }

# Sets `python`, and PYTHONPATH where the environment is not enough.
choose_environment() {
    if [ -n "$rehearse" ]; then
        python=${PYTHON:-$root/.venv/bin/python}
        [ -x "$python" ] || die "A rehearsal needs the environment of make env-dev."
    elif has_vllm_for_cuda; then
        python=$root/.venv/bin/python
    elif find_pack; then
        python=$(command -v "${PYTHON:-python3}") || die "There is no ${PYTHON:-python3}."
        timeout "$UNPACK_S" "$python" bench/gpu/smoke/unpack.py "$pack" "$work/site" "$root" \
            >"$work/unpack.log" 2>&1 || die "Cannot unpack $pack: $(tail -n 1 "$work/unpack.log")"
        paths=$work/site:$root/src:$(printf '%s:' "$root"/packages/kvscope-*/src)
        export PATH=$work/site/bin:$PATH
    else
        die "There is no vLLM for CUDA here: run 'make env DEVICE=cuda', or where there is no" \
            "network give PACK=…, made elsewhere by bench/gpu/make_pack.sh."
    fi
    export PYTHONPATH=${paths:-}$root/bench/gpu:$root/packages/kvscope-kernels/tests/gpu:$root
}

# A directory that makes Python see a GPU, in front of all else.
make_rehearsed_node() {
    "$python" - "$work" >"$work/environment" <<'PYTHON' || die "Cannot make a rehearsed node."
import os
import sys
from pathlib import Path

from kvscope_rehearsal.command import vllm_version
from kvscope_rehearsal.node import Gpus, environment_of, make_node

node = Path(sys.argv[1]) / "node"
make_node(node, Gpus(), vllm_version())
for name, value in environment_of(node, os.environ).items():
    if value != os.environ.get(name):
        print(f"{name}={value}")
PYTHON
    while IFS= read -r line; do export "${line?}"; done <"$work/environment"
    export SMOKE_REHEARSED=1
}

name_results() { # DATE-GPU, in letters, digits and -
    local gpu
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    echo "bench/results/gpu/$(date --utc +%F)-$(tr -cs 'A-Za-z0-9' '-' <<<"${gpu:-no GPU}" | sed 's/-*$//')"
}

choose_environment
[ -z "$rehearse" ] || make_rehearsed_node
if [ -z "${OUT:-}" ]; then
    [ -n "$rehearse" ] && OUT=$work/out || OUT=$(name_results)
fi
mkdir -p "$OUT" || die "Cannot write results to $OUT: name another directory, OUT=…"

export SMOKE_WORK=$work SMOKE_COMMAND=$command SMOKE_STEPS="$*" TMPDIR=$work/tmp
export SMOKE_COMMIT=${SMOKE_COMMIT:-$(git describe --always --dirty --abbrev=12 2>/dev/null ||
    cat "${pack:-.gpu}/commit" 2>/dev/null)}
export TRITON_CACHE_DIR=$work/triton NUMBA_CACHE_DIR=$work/cache/numba XDG_CACHE_HOME=$work/cache
export VLLM_CACHE_ROOT=$work/cache/vllm VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING
export HF_HUB_OFFLINE=1 PYTORCH_NVML_BASED_CUDA_CHECK=1 PYTHONUNBUFFERED=1

timeout --kill-after=10 "$(left $((REPORT_S + 10)))" "$python" -m smoke.steps \
    "$(left $((REPORT_S + 20)))" "$@" 2>"$work/imports.log" | tee "$work/steps.txt"
timeout --kill-after=5 "$REPORT_S" "$python" -m smoke.report "$OUT" >"$work/report.txt" 2>"$work/report.err"
code=$?
for log in "$work"/{steps.txt,report.err,*.log}; do
    echo "=== ${log##*/}" && tail -c 300000 "$log"
done >"$OUT/log.txt"
cat "$work/report.txt" "$work/report.err"
echo "$((SECONDS - began)) s; results are in $OUT"
exit $code
