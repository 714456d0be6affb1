"""Where the tests of CUDA put their tensors: on a GPU or, with --emulated-cuda, on the CPU, whose
kernels are then those of CUDA in the emulator."""

import torch

name = "cuda"


def use_emulator(library):
    """For the rest of the process the operators on the CPU run emulated CUDA kernels."""
    global name
    torch.ops.load_library(library)
    name = "cpu"


def to_cuda(x):
    return x.to(name) if isinstance(x, torch.Tensor) else x
