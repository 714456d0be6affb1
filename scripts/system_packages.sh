#!/bin/sh
# Makes sure that the libraries of the C++ tests are there: GoogleTest and Google Benchmark, and, if it
# may install them, Boost.Context, without which the tests of the CUDA kernels are skipped, and Valgrind,
# without which the instruction counts are.
set -eu
found() { echo "#include <$1>" | ${CXX:-c++} -x c++ -fsyntax-only - 2> /dev/null; }
missing=""
found gtest/gtest.h || missing="$missing libgtest-dev"
found benchmark/benchmark.h || missing="$missing libbenchmark-dev"
. scripts/apt.sh
found boost/context/detail/fcontext.hpp || apt_install libboost-context-dev ||
  echo "The tests of the CUDA kernels are skipped. They need Boost.Context, on Debian and Ubuntu:" \
    "apt-get install libboost-context-dev" >&2
command -v valgrind > /dev/null || apt_install valgrind ||
  echo "The instruction counts are skipped. They need, on Debian and Ubuntu: apt-get install valgrind" >&2
[ -z "$missing" ] && exit 0
# shellcheck disable=SC2086  # one word for each package
apt_install $missing || {
  echo "The tests need GoogleTest and Google Benchmark. Install them, on Debian and Ubuntu with:" \
    "apt-get install$missing" >&2
  exit 1
}
