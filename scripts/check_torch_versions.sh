#!/bin/sh
# Builds the sources against several torch releases and runs the Python tests of the operator on each, in
# environments of their own (.venv-torch-<version>, reused when they are there).
# usage: check_torch_versions.sh [version ...]     PYTHON: the interpreter for the environments
# TORCH_TEST_ARGS: arguments for pytest, which files for example (default: test/python)
set -eu
cd "$(dirname "$0")/.."
export PYTHON="${PYTHON:-python3}"
[ $# -gt 0 ] || set -- 2.11 2.15
for version in "$@"; do
  export VENV="$PWD/.venv-torch-$version" TORCH_SPEC="torch==$version.*"
  sh scripts/setup_venv.sh
  echo "== torch $version"
  # Not editable: the checkout's own package keeps the library that it has.
  PATH="$VENV/bin:$PATH" FUSED_ATTENTION_BUILD_DIR="$PWD/build/torch-$version" \
    "$VENV/bin/python" -m pip install --quiet --no-build-isolation --force-reinstall --no-deps .
  "$VENV/bin/python" -m pip install --quiet --no-build-isolation expecttest hypothesis numpy pytest
  # shellcheck disable=SC2086  # a list of arguments
  "$VENV/bin/python" -m pytest -q ${TORCH_TEST_ARGS:-test/python}
done
