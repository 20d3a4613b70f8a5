# Sourced on Polaris: before `make env`, in a shell that submits, and by profiles/polaris on each
# node of a job. Nothing here is kvscope's own; docs/POLARIS.md says what each line is for.

# Compilers and CUDA of the facility, nsys included.
module use /soft/modulefiles 2>/dev/null
module load cudatoolkit-standalone 2>/dev/null || true

# Downloads go through the facility's proxy, what stays on a machine does not: a proxy that is asked
# for localhost answers nothing.
export http_proxy=${http_proxy:-http://proxy.alcf.anl.gov:3128}
export https_proxy=${https_proxy:-$http_proxy}
export no_proxy=localhost,127.0.0.1,.hsn.cm.polaris.alcf.anl.gov
export NO_PROXY=$no_proxy

# Temporary files on the node's own disks, under a short name: names of sockets have a limit, and
# nsys writes its reports there first. /local/scratch is there on compute nodes only.
if [ -w /local/scratch ]; then
    export PACK_SCRATCH=/local/scratch
    export TMPDIR=/local/scratch
else
    export TMPDIR=/tmp
fi

# One download of compiled kernels a node, not one a process on the shared file system.
export VLLM_CACHE_ROOT=$TMPDIR/vllm TRITON_CACHE_DIR=$TMPDIR/triton NUMBA_CACHE_DIR=$TMPDIR/numba
export VLLM_NO_USAGE_STATS=1
