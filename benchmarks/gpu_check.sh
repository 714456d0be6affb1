#!/bin/sh
# Builds the library on a machine with a GPU, runs the tests that need one, and compares with SDPA's
# backends, in at most 8 minutes and without a network. Leaves gpu_check.json and gpu_check.md, and
# what it builds in a folder of its own: an installed fused_attention stays as it is.
#
#   sh benchmarks/gpu_check.sh [--without-gpu] [--wheels FOLDER]
#   sh benchmarks/gpu_check.sh --collect-wheels FOLDER
#
# Needs python3 with torch; nvcc of torch's major CUDA release; cmake 3.28 or newer; ninja; a C++
# compiler; and pytest. Where pytest is not installed, --wheels takes it from FOLDER, which
# --collect-wheels fills before, on a machine with a network and the same release of Python.
# --without-gpu does everything else where there is no GPU: builds, skips the tests, and runs the
# comparison with tiny sizes on the CPU.
#
# PYTHON  the interpreter (python3)      OUT   where results go (out/gpu)
# BUILD   the build folder (build/gpu)   JOBS  compilers at a time
#
# Folders are relative to that of the sources.
set -u
cd "$(dirname "$0")/.." || exit 2
python="${PYTHON:-python3}"
out="${OUT:-out/gpu}"
build="${BUILD:-build/gpu}"
jobs="${JOBS:-$(nproc)}"
device=cuda
seconds=480
wheels=""
start=$(date +%s)
left() { echo $((seconds - $(date +%s) + start)); }
fail() {
  echo "gpu_check: $1" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  option="$1"
  shift
  case "$option" in
    --without-gpu)
      device=cpu
      seconds=3600 # there is no lease to keep to
      ;;
    --wheels | --collect-wheels)
      [ $# -gt 0 ] || fail "$option needs a folder"
      wheels="$1"
      shift
      [ "$option" = --wheels ] ||
        exec "$python" -m pip download --only-binary=:all: --dest "$wheels" pytest
      ;;
    *) fail "there is no option $option" ;;
  esac
done

found=$(command -v "$python") || fail "needs $python"
mkdir -p "$out" "$build" || exit 2
build=$(cd "$build" && pwd)
rm -rf "$build/wheels" "$build/package"
if [ -n "$wheels" ]; then
  # pytest and what it needs are pure Python: unpacked is installed.
  for wheel in "$wheels"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$build/wheels" || fail "no wheels can be read in $wheels"
  done
fi
export PYTHONPATH="$build/package:$build/wheels${PYTHONPATH:+:$PYTHONPATH}"
"$python" -c 'import torch' || fail "needs torch"
"$python" -c 'import pytest' || fail "needs pytest. On a machine with a network run
  sh benchmarks/gpu_check.sh --collect-wheels FOLDER
bring FOLDER here, and add --wheels FOLDER"
PATH="$(dirname "$found"):$PATH:/usr/local/cuda/bin"
for tool in cmake ninja nvcc c++; do
  command -v $tool > /dev/null || fail "needs $tool"
done
architectures=""
if [ $device = cuda ]; then
  architecture=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability(0))') ||
    fail "there is no GPU that torch can use; --without-gpu does the rest"
  # For this GPU alone it compiles in half the time.
  architectures="-DCMAKE_CUDA_ARCHITECTURES=$architecture-real"
fi
# Nothing of an earlier run may pass for one of this.
rm -f "$out/build.log" "$out/tests.xml" "$out/bench_gpu.json" "$out/gpu_check.json" "$out/gpu_check.md"

# Absolute, because a relative name would be taken as a program on the PATH.
interpreter=$("$python" -c 'import sys; print(sys.executable)')
# shellcheck disable=SC2086  # nothing where there is no GPU
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DUSE_CUDA=1 -DCMAKE_INSTALL_LIBDIR=lib \
  -DPython_EXECUTABLE="$interpreter" $architectures > "$out/build.log" 2>&1 &&
  timeout "$(left)" cmake --build "$build" --parallel "$jobs" --target fused_attention_library \
    >> "$out/build.log" 2>&1 || {
  tail -30 "$out/build.log"
  fail "the build failed"
}
mkdir "$build/package" && cp -R python/fused_attention "$build/package" || exit 2
for component in library python; do
  cmake --install "$build" --prefix "$build/package/fused_attention" --component $component \
    >> "$out/build.log" || fail "the installation failed"
done
built=$(date +%s)
echo "built in $((built - start)) s"

# Half of what is left: the comparison needs its time, too. Other files may import what is not here.
# shellcheck disable=SC2046  # several files
timeout $(($(left) / 2)) "$python" -m pytest -v -m gpu -rs --no-header -p no:cacheprovider \
  -o faulthandler_timeout=60 --junitxml="$out/tests.xml" \
  $(grep -l 'mark\.gpu' test/python/test_*.py)
tests=$?
tested=$(date +%s)
echo "tested in $((tested - built)) s"

timeout "$(left)" "$python" benchmarks/bench_gpu.py --device $device --out "$out" \
  --seconds $(($(left) - 45))
compared=$?

"$python" benchmarks/gpu_summary.py --out "$out" --build-seconds $((built - start)) \
  --test-seconds $((tested - built)) --test-status $tests --bench-status $compared || exit 2
echo "all in $(($(date +%s) - start)) s"
[ $tests = 0 ] && [ $compared = 0 ]
