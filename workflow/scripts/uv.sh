# Sourced by install-env.sh and release.sh: uv, told what pip is told. $python makes the venv that uv is
# installed into, $venv is the environment that packages are added to.

# Copies, because a link to uv's cache would share its damage; all indexes are equal, as for pip.
export UV_LINK_MODE=${UV_LINK_MODE:-copy} UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}

die() {
    echo "$*" >&2
    exit 1
}
# The directory of the environment; those that uv and pip write to beside it, and the variables
# that move them.
require_room() {
    local cache=${XDG_CACHE_HOME:-${HOME:-~}/.cache} pair place said
    for pair in "=$(dirname "$venv")" "UV_CACHE_DIR=${UV_CACHE_DIR:-$cache/uv}" "TMPDIR=${TMPDIR:-/tmp}"; do
        place=${pair#*=}
        said=$({ mkdir -p "$place" && head -c 65536 /dev/zero >"$place/.room-$$"; } 2>&1) || {
            rm -f "$place/.room-$$" 2>/dev/null || true
            [ -n "${pair%%=*}" ] || die "$place cannot be written (${said##*: }): make room there."
            die "$place cannot be written (${said##*: }): make room, or name another directory" \
                "in ${pair%%=*}."
        }
        rm -f "$place/.room-$$"
    done
}
fail() { require_room && die "$1 (its words are above): once that is put right, make env goes on from here."; }

provide_uv() {
    local pin
    pin=$(grep '^uv==' envs/uv.txt)
    for uv in "$(command -v uv || true)" .uv/bin/uv; do
        [[ $("$uv" --version 2>/dev/null) != "uv ${pin#uv==}"* ]] || return 0
    done
    "$python" -c 'import ensurepip, venv' 2>/dev/null || die "'$python' cannot make virtual" \
        "environments: install its venv module (Debian and Ubuntu: the package python3-venv)."
    echo "Installing $pin into .uv"
    { "$python" -m venv --clear .uv && .uv/bin/python -m pip install -qq "$pin"; } ||
        fail "pip does not install $pin"
}

# uv does not read what pip is told of indexes, wheels, certificates and proxies: what is not set for
# uv is set as it is for pip, whose variables (:env:) come before its files.
adopt_pip_settings() {
    local said pair value
    said=$({ .uv/bin/python -m pip config list || "$python" -m pip config list ||
        "$python" "$(bundled_pip)/pip" config list; } 2>/dev/null) || true
    for pair in index-url=UV_DEFAULT_INDEX extra-index-url=UV_INDEX find-links=UV_FIND_LINKS \
        no-index=NO_INDEX constraint=UV_CONSTRAINT trusted-host=UV_INSECURE_HOST cert=SSL_CERT_FILE \
        client-cert=SSL_CLIENT_CERT proxy=ALL_PROXY timeout=UV_HTTP_TIMEOUT; do
        value=$(sed -n "s/^:env:/~/; s/^\([^.]*\)\.${pair%=*}=['\"]\(..*\)['\"]\$/\1 \2/p" <<<"$said" |
            LC_ALL=C sort | tail -n 1 | cut -d ' ' -f 2- | sed 's/\\n/ /g')
        [ "${pair#*=}" != UV_FIND_LINKS ] || value=${value// /,}
        declare -n ours=${pair#*=}
        [ -z "$value" ] || [ -n "${ours:-}" ] || export "${pair#*=}=$value"
    done
    [[ ! ${NO_INDEX:-} =~ ^(0|false|no|off|n|f)$ ]] || NO_INDEX=''
}
bundled_pip() { "$python" -c 'import ensurepip, pathlib
print(next(pathlib.Path(ensurepip.__file__).with_name("_bundled").glob("pip-*.whl")))'; }

add() {
    "$uv" pip install --python "$venv/bin/python" --no-build-isolation \
        ${NO_INDEX:+--no-index} "$@"
}

# torch's CPU build is not where other packages are: PyTorch has an index for it, which uv knows.
add_torch() {
    local first
    if [ -n "${TORCH_INDEX:-}" ]; then
        UV_INDEX='' UV_FIND_LINKS='' add --no-deps --default-index "$TORCH_INDEX" "$1"
    else
        first=$(add --no-deps "$1" 2>&1) || add --no-deps --torch-backend cpu "$1" ||
            { echo "$first" >&2 && false; }
    fi || die "uv finds no $1${TORCH_INDEX:+ in TORCH_INDEX=$TORCH_INDEX} (its words are above): name" \
        "a mirror, make env TORCH_INDEX=…, or a folder with the wheel, PIP_FIND_LINKS=… make env."
}
