"""Loads the operator library into torch, or says what is wrong and how to put it right."""

import importlib
from pathlib import Path

import torch

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps <fused_attention sources>"
_LIBRARY = Path(__file__).parent / "lib" / "libfused_attention.so"


def _minor_release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def check_torch_version(built_for: str, running: str) -> None:
    """Raises ImportError if the library was built for another torch than the one that runs.

    Torch keeps its binary interface within a minor release (2.15.x) and not beyond it.
    """
    if _minor_release(built_for) != _minor_release(running):
        raise ImportError(
            f"fused_attention was built for torch {built_for}, but this is torch {running}. "
            f"Rebuild it with the torch that is installed: {_REBUILD}"
        )


def load_library() -> None:
    """Registers `torch.ops.fused_attention.*`.

    Loading is idempotent: if the operators are registered already, by this file or by another copy
    of the library in the process, the copy that came first stays in charge.
    """
    try:
        build_info = importlib.import_module("._build_info", __package__)
    except ModuleNotFoundError as error:
        raise ImportError(
            "fused_attention has no built library beside it. Run this in its source folder: "
            "pip install --no-build-isolation -e ."
        ) from error
    check_torch_version(build_info.torch_version, torch.__version__)
    try:
        torch.ops.load_library(_LIBRARY)
    except OSError as error:
        # torch hides the linker's own message (which symbol, which file) in the cause.
        reason = error.__cause__ or error
        raise ImportError(
            f"fused_attention's library, built for torch {build_info.torch_version}, cannot be "
            f"loaded into torch {torch.__version__}: {reason}. Rebuild it: {_REBUILD}"
        ) from error
