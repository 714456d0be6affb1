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


def count_launches(run) -> int:
    """How many kernels of the library a call starts."""
    if name == "cpu":
        launches = torch.ops.fused_attention_emulator.launches
        before = launches()
        run()
        return launches() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum("attention_kernel" in event.name for event in profile.events())
