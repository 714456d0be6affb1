"""The machine's ceilings: multiply-adds and streaming read, measured by probes.cpp."""

import ctypes
import subprocess
import sys
import time
from pathlib import Path
from shutil import which

import torch

_ROOT = Path(__file__).resolve().parent.parent
_BUILD = _ROOT / "build" / "probes"
_BYTES_OF_ISA = {"avx512_bf16": 64, "avx512": 64, "avx2": 32}
# An OpenMP thread spins for a moment after its work before it sleeps, and would disturb a probe.
_SETTLE_SECONDS = 0.003
_FMA_SECONDS = 0.004


class Probes:
    """Measures with `threads` threads and with the vectors of `isa`."""

    def __init__(self, isa: str, threads: int):
        self.library = ctypes.CDLL(str(_build()))
        self.library.probe_fma_gflops.restype = ctypes.c_double
        self.library.probe_fma_gflops.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_double)
        self.library.probe_bf16_dot_gflops.restype = ctypes.c_double
        self.library.probe_bf16_dot_gflops.argtypes = (ctypes.c_int, ctypes.c_double)
        self.library.probe_read_gbps.restype = ctypes.c_double
        self.library.probe_read_gbps.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        )
        self.bytes = min(_BYTES_OF_ISA.get(isa, 16), self.library.probe_vector_bytes())
        self.threads = threads
        self.multiplies_pairs = isa == "avx512_bf16"

    def fma_gflops(self, dtype: str) -> float:
        """Multiply-adds as the ISA has them for the dtype: in fp32, or of bf16 in pairs."""
        time.sleep(_SETTLE_SECONDS)
        if dtype == "bf16" and self.multiplies_pairs:
            return self.library.probe_bf16_dot_gflops(self.threads, _FMA_SECONDS)
        return self.library.probe_fma_gflops(self.bytes, self.threads, _FMA_SECONDS)

    def read_gbps(self, tensor: torch.Tensor) -> float:
        """Reads a contiguous tensor once."""
        time.sleep(_SETTLE_SECONDS)
        size = tensor.numel() * tensor.element_size()
        return self.library.probe_read_gbps(tensor.data_ptr(), size, self.bytes, self.threads)


def _build() -> Path:
    """Builds the probes, torch-free, which takes seconds; returns the library."""
    beside_python = Path(sys.executable).with_name("cmake")
    cmake = str(beside_python) if beside_python.exists() else which("cmake")
    if cmake is None:
        raise RuntimeError("the probes need cmake: pip install 'cmake>=3.28'")
    configure = [cmake, "-S", _ROOT, "-B", _BUILD, "-DFUSED_ATTENTION_WITH_TORCH=OFF"]
    configure += ["-DFUSED_ATTENTION_BENCHMARKS=ON", "-DFUSED_ATTENTION_TESTS=OFF"]
    build = [cmake, "--build", _BUILD, "--target", "fused_attention_probes"]
    for command in (configure, build):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the probes do not build:\n{done.stdout}{done.stderr}")
    return _BUILD / "benchmarks" / "libfused_attention_probes.so"
