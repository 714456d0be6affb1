"""Fused attention for torch: exact, memory linear in the sequence length, differentiable."""

from pathlib import Path

from ._load import load_library

load_library()

from . import cpu, flops, nn  # noqa: E402
from ._build_info import version as __version__  # noqa: E402
from .ops import attention  # noqa: E402

#: For CMake: -DCMAKE_PREFIX_PATH, so that find_package(fused_attention) finds the C++ library.
cmake_prefix_path = str(Path(__file__).parent)

__all__ = ["__version__", "attention", "cmake_prefix_path", "cpu", "flops", "nn"]
