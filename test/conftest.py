"""Session options and fixtures shared by every test."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

import cuda_device
import fused_attention
import seeding


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, help="replay a session with the seed it printed")
    parser.addoption(
        "--deterministic",
        action="store_true",
        help="run under torch.use_deterministic_algorithms(True), in which torch fills every new "
        "tensor with NaN; tests marked slow or own_mode are left out",
    )
    parser.addoption(
        "--emulated-cuda",
        metavar="LIBRARY",
        help="run the tests marked gpu on the CPU, in the emulator that is in this library",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: compiles code or runs for more than a few seconds")
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU, and a build with CUDA kernels")
    config.addinivalue_line("markers", "real_gpu: what the emulator of --emulated-cuda has not")
    config.addinivalue_line("markers", "own_mode: starts processes, or measures memory")
    if config.getoption("--seed") is not None:
        os.environ[seeding.ENVIRONMENT] = str(config.getoption("--seed"))
    seeding.session_seed()
    if config.getoption("--emulated-cuda"):
        cuda_device.use_emulator(config.getoption("--emulated-cuda"))


def pytest_report_header(config):
    mode = "on, new tensors hold NaN" if config.getoption("--deterministic") else "off"
    return [
        f"fused_attention: seed {seeding.session_seed()} (replay with --seed), "
        f"ISAs {', '.join(fused_attention.cpu.isas())}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, deterministic mode {mode}"
    ]


def why_no_gpu(item) -> str:
    """Why a test marked gpu is skipped; nothing where it can run."""
    if item.config.getoption("--emulated-cuda"):
        return "there is no emulator for it" if item.get_closest_marker("real_gpu") else ""
    if not importlib.import_module("fused_attention._build_info").cuda:
        return "this build has no CUDA kernels"
    return "" if torch.cuda.is_available() else "there is no GPU that torch can use"


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("gpu") and (reason := why_no_gpu(item)):
            item.add_marker(pytest.mark.skip(reason=f"GPU test: {reason}"))
    if not config.getoption("--deterministic"):
        return
    left_out = [
        i for i in items if i.get_closest_marker("slow") or i.get_closest_marker("own_mode")
    ]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc):
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", fused_attention.cpu.isas(), indirect=True)


@pytest.fixture(autouse=True)
def _seed(request):
    seeding.seed_test(request.node.nodeid.split("::", 1)[-1])


@pytest.fixture(autouse=True, scope="session")
def _determinism(request):
    """Outputs start as NaN, so that an element which nobody writes shows."""
    torch.use_deterministic_algorithms(request.config.getoption("--deterministic"))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def isa(request):
    """Each ISA that this machine runs, by name; the active one is put back afterwards."""
    before = fused_attention.cpu.active_isa()
    fused_attention.cpu.set_isa(request.param)
    yield request.param
    fused_attention.cpu.set_isa(before)


@pytest.fixture(params=[1, 2, 3, 16], ids=lambda n: f"{n}threads")
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def nan_filled():
    """As --deterministic, for one test."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
