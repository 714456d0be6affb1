#!/bin/sh
# Makes sure that the libraries of the C++ tests are there: GoogleTest and Google Benchmark.
set -eu
found() { echo "#include <$1>" | ${CXX:-c++} -x c++ -fsyntax-only - 2> /dev/null; }
missing=""
found gtest/gtest.h || missing="$missing libgtest-dev"
found benchmark/benchmark.h || missing="$missing libbenchmark-dev"
[ -z "$missing" ] && exit 0
. scripts/apt.sh
# shellcheck disable=SC2086  # one word for each package
apt_install $missing || {
  echo "The tests need GoogleTest and Google Benchmark. Install them, on Debian and Ubuntu with:" \
    "apt-get install$missing" >&2
  exit 1
}
