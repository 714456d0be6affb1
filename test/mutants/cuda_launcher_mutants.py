"""Faults in what the .cu files ask of CUDA's runtime."""

from __future__ import annotations

from mutants import fault

LAUNCHER = "csrc/cuda/launcher.cuh"
RUN = "csrc/cuda/run.cpp"
DEVICE = "csrc/cuda/device.cu"


def launcher_fault(name: str, file: str, old: str, new: str):
    return fault(name, file, old, new, suite="launcher")


LAUNCHER_MUTANTS = (
    launcher_fault(
        "kernels run on the default stream",
        LAUNCHER,
        "static_cast<std::size_t>(launch.shared_bytes), stream>>>",
        "static_cast<std::size_t>(launch.shared_bytes), nullptr>>>",
    ),
    launcher_fault(
        "backward kernels of fp64 run on the default stream",
        "csrc/cuda/backward_float64.cu",
        "CudaLauncher{stream}",
        "CudaLauncher{nullptr}",
    ),
    launcher_fault(
        "shared memory beyond 48 KB is asked for on the first device only",
        LAUNCHER,
        "check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,\n"
        "                                      launch.shared_bytes),\n"
        "                 launch.shared_bytes);",
        "static const cudaError_t error = cudaFuncSetAttribute(\n"
        "        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes);\n"
        "    check_launch(error, launch.shared_bytes);",
    ),
    launcher_fault(
        "grid has one dimension",
        LAUNCHER,
        "static_cast<unsigned>(launch.grid_y));",
        "1U);",
    ),
    launcher_fault(
        "failing launch is not noticed",
        LAUNCHER,
        "check_launch(cudaGetLastError(), launch.shared_bytes);",
        "",
    ),
    launcher_fault(
        "error of a launch is left for the next one",
        LAUNCHER,
        "cudaGetLastError();  // so that",
        "// so that",
    ),
    launcher_fault(
        "fp16 runs as bf16",
        RUN,
        "return backward_float16(call, statistics, stream);",
        "return backward_bfloat16(call, statistics, stream);",
    ),
    launcher_fault(
        "multiprocessors are those of device 0",
        DEVICE,
        "cudaDevAttrMultiProcessorCount, device);",
        "cudaDevAttrMultiProcessorCount, 0);",
    ),
)
