# Sourced on Polaris: before `make env`, in a shell that submits, and by profiles/polaris on each
# node of a job. Nothing here is kvscope's own; docs/POLARIS.md says what each line is for. Where it
# is sourced elsewhere it says what is missing, in a sentence, and changes what it can.

# The facility's CUDA; nsys is in its default modules. /soft/modulefiles is not on the default
# MODULEPATH.
if command -v module >/dev/null; then
    module use /soft/modulefiles
    module load cudatoolkit-standalone ||
        echo "envs/polaris.sh: there is no module cudatoolkit-standalone; going on without it" >&2
else
    echo "envs/polaris.sh: $(uname -n) has no command module; going on with the programs in PATH" >&2
fi

# Downloads go through the facility's proxy, what stays on a machine does not: a proxy that is asked
# for localhost answers nothing. Elsewhere, where there is no /soft, the proxy stays as it is.
if [ -d /soft/modulefiles ]; then
    export http_proxy=${http_proxy:-http://proxy.alcf.anl.gov:3128}
    export https_proxy=${https_proxy:-$http_proxy}
fi
case ,${no_proxy:-}, in
    *,localhost,*) ;;
    *) no_proxy=${no_proxy:+$no_proxy,}localhost,127.0.0.1,.hsn.cm.polaris.alcf.anl.gov ;;
esac
export no_proxy NO_PROXY=$no_proxy

# Temporary files on the node's own disks, under a short name: names of sockets have a limit, and
# nsys writes its reports there first. /local/scratch is there on compute nodes only.
[ ! -w /local/scratch ] || export PACK_SCRATCH=/local/scratch
export TMPDIR=${PACK_SCRATCH:-/tmp}

# One download of compiled kernels a node, not one a process on the shared file system.
node_cache=$TMPDIR/kvscope-$(id -un)
export VLLM_CACHE_ROOT=$node_cache/vllm TRITON_CACHE_DIR=$node_cache/triton
export NUMBA_CACHE_DIR=$node_cache/numba
unset node_cache
export VLLM_NO_USAGE_STATS=1
