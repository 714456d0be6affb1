#!/bin/sh
# Installs CUTLASS's headers, which some tests of the CUDA kernels compare with, where a CUDA toolkit makes
# use of them. Without its dependencies: they are for the package's Python code.
set -eu
command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || exit 0
"$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps 'nvidia-cutlass>=4.2,<5' ||
  echo "Tests that compare with CUTLASS's headers are skipped." >&2
