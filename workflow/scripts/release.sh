#!/usr/bin/env bash
# Build wheel and source of every package into dist/, check them, and try the wheels in an empty
# environment: kvscope alone, then each other package with what it brings. `make release`
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD python=.venv/bin/python venv=.cache/release/venv work=.cache/release/work
. workflow/scripts/uv.sh

changed=$(git status --porcelain)
[ -z "$changed" ] ||
    die "The tree has changes that no commit has ($(head -n 1 <<<"$changed" | cut -c 4-)): commit or" \
        "remove them, and make release again."
note=$("$python" workflow/scripts/metadata.py --check) || exit 1

rm -rf dist .cache/release
mkdir -p "$work"
provide_uv
adopt_pip_settings

echo "Building"
for project in . packages/*/; do
    "$uv" build --quiet --build-constraints envs/build.txt --out-dir dist "$project" ||
        fail "$project cannot be built"
done
rm -f dist/.gitignore # uv writes it into a new folder
ls dist
"$uv" tool run --quiet twine==7.0.0 check --strict dist/* || fail "twine refuses them"

wheel() { echo "dist/${1//-/_}"-*.whl; }
try() {
    echo "  kvscope $*"
    (cd "$work" && "$root/$venv/bin/kvscope" "$@" >../log 2>&1) || { cat .cache/release/log && exit 1; }
}

echo "kvscope alone, with what its wheel requires, as pinned in envs/"
"$uv" venv --quiet --python "$python" "$venv"
add --no-deps --requirements envs/build.txt
export UV_CONSTRAINT="envs/kvscope.txt envs/cpu.txt" # not of $root, which may have a space
add "$(wheel kvscope)"
try --version
try plan study=batching-cpu

echo "with vLLM, which runs need"
add_torch "$(grep '^torch==' envs/cpu.txt)"
add --no-deps --requirements <(cat envs/kvscope.txt envs/cpu.txt | grep -v '^torch==\|^-r')
tiny=(workload.num_requests=2 workload.prompt_tokens=32 workload.output_tokens=8)
try run device=dry "${tiny[@]}" --out core
try collect core
try analyse core
try check core
try report core

# Each package is tried with the names that it brings.
declare -A brings=(
    [kvscope-cluster]="status core"
    [kvscope-connectors]="run device=dry overflow=native overflow.host_gib=0.1 ${tiny[*]} --out native"
    [kvscope-explain]="explain core"
    [kvscope-kernels]="run engine.attention=instrumented tracing=full ${tiny[*]} --out traced"
    [kvscope-model]="run device=modeled ${tiny[*]} --out modeled"
    [kvscope-offload]="run device=offload_modeled model=opt-6.7b batching=prefill_first ${tiny[*]} --out offload"
    [kvscope-paper]="plan study=paper device=modeled"
    [kvscope-record]="record --help"
    [kvscope-rehearsal]="rehearse --help"
)
for name in $(cd packages && ls); do
    echo "with $name"
    add --no-deps "$(wheel "$name")"
    try plan study=batching-cpu
    [ -z "${brings[$name]:-}" ] || try ${brings[$name]}
done
echo "dist/ holds version $("$venv/bin/python" -c 'import kvscope; print(kvscope.__version__)'), tried"
[ -z "$note" ] || echo "$note"
