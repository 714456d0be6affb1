# make demo   train a small model with the fused op and with torch's SDPA, side by side
# make test   build everything and run every check (prints what was skipped, and why)
# make build | bench | bench-docs | counts | format | tidy | test-torch | clean
#
# They need git, make, g++ and Python 3.10 or newer, and install the rest into .venv. Where GoogleTest is
# missing, `make test` installs it from the system's packages if it may.
#
# TORCH_SPEC  which torch to install and build against    DEMO_ARGS    arguments for the demo
# VENV        the virtual environment to use              BENCH_ARGS   arguments for the benchmark
# BUILD       the build folder                            PYTEST_ARGS  arguments for pytest
# MAX_JOBS    compilers at a time                         USE_CUDA     auto, 0 or 1
PYTHON ?= python3
export TORCH_SPEC ?= torch>=2.11,<2.16
export VENV ?= $(CURDIR)/.venv
export BUILD ?= $(CURDIR)/build/release
export FUSED_ATTENTION_BUILD_DIR := $(BUILD)
export MAX_JOBS ?= $(shell nproc)
export PATH := $(VENV)/bin:$(PATH)
# Named in full: some versions of make look commands up in the PATH that they were started with.
python := "$(VENV)/bin/python"
cmake := "$(VENV)/bin/cmake"
configure = $(cmake) -B "$(BUILD)" -DPython_EXECUTABLE="$(VENV)/bin/python" \
  -DCMAKE_INSTALL_LIBDIR=lib -DUSE_CUDA="$(or $(USE_CUDA),auto)"
install_package = $(python) -m pip install --disable-pip-version-check --quiet \
  --no-build-isolation --editable '.[dev,plot]'

.PHONY: build demo test test-build bench bench-docs counts format tidy test-torch clean venv
.DEFAULT_GOAL := build

build: venv
	$(configure) --preset release
	$(cmake) --build "$(BUILD)" --parallel $(MAX_JOBS) --target fused_attention_library
	$(install_package)

demo: build
	$(python) examples/train_lm/train.py $(DEMO_ARGS)

# The same folder and objects as `build`, with the test programs added.
test-build: venv
	sh scripts/system_packages.sh
	@VENV="$(VENV)" sh scripts/cutlass_headers.sh
	$(configure) --preset ci
	$(cmake) --build "$(BUILD)" --parallel $(MAX_JOBS)
	$(install_package)

test: test-build
	$(python) scripts/run_checks.py

bench: build
	$(python) benchmarks/bench_attention.py $(BENCH_ARGS)

# Measures what docs/performance*.md shows and fills its tables: less than 12 minutes of a quiet machine.
bench-docs: test-build
	$(python) benchmarks/bench_docs.py

# Rewrites the instruction counts that `make test` compares with, after a change that is meant.
counts: test-build
	$(python) benchmarks/count_instructions.py --update

format: build
	$(python) -m ruff check --fix .
	$(python) -m ruff format .
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs "$(VENV)/bin/clang-format" -i

tidy: test-build
	git ls-files 'csrc/*.cpp' | xargs clang-tidy -p "$(BUILD)" --quiet

# One source builds on the oldest and on the newest torch, each in an environment of its own.
test-torch:
	sh scripts/check_torch_versions.sh

venv:
	@PYTHON="$(PYTHON)" sh scripts/setup_venv.sh

clean:
	rm -rf build dist python/fused_attention/lib python/fused_attention/include \
	  python/fused_attention/share python/fused_attention/_build_info.py
