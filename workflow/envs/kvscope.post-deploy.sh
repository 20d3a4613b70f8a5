#!/usr/bin/env bash
# Run by Snakemake in the checkout, once the conda environment of kvscope.yaml is there.
set -euo pipefail
PYTHON='' VENV="$CONDA_PREFIX" workflow/scripts/install-env.sh
