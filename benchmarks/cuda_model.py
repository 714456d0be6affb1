"""What a CUDA kernel needs at least for a tile, and how long that takes on a GPU, on paper."""

from __future__ import annotations

from dataclasses import dataclass, field

WARP = 32
COUNTED = ("HMMA", "LDSM", "LDGSTS", "MUFU.EX2", "BAR", "STS")


@dataclass
class KernelInfo:
    """A line of list_cuda_kernels; 0 where the kernel has no such thing."""

    name: str
    threads: int
    shared_bytes: int
    blocks_per_sm: int  # that registers leave room for, as the launch bounds ask
    rows: int = 0
    keys: int = 0
    stages: int = 0
    dim_qk: int = 0
    dim_v: int = 0
    columns: int = 0
    general: int = 0
    wants_key: int = 0
    wants_value: int = 0
    kind: str = field(init=False)
    dtype: str = field(init=False)

    def __post_init__(self):
        config, arguments = self.name.replace("fused_attention::cuda::", "").split("<", 1)
        kinds = {"Forward": "forward", "QueryGradient": "dQ", "KeyGradient": "dK, dV"}
        bare = config.removesuffix("Config").removeprefix("Exact")
        self.kind = kinds.get(bare, bare)
        if self.kind == "dK, dV" and self.wants_key != self.wants_value:
            self.kind = "dK" if self.wants_key else "dV"
        names = {"BFloat16": "bf16", "Float16": "fp16", "float": "fp32", "double": "fp64"}
        self.dtype = names[arguments.split(",")[0].rstrip("> ")]

    @property
    def label(self) -> str:
        if self.kind == "Merge":
            return "merging chunks of keys"
        dims = f"D {self.dim_qk}" + (f" / {self.dim_v}" if self.dim_v != self.dim_qk else "")
        if not self.dim_qk:
            dims = f"{self.columns} columns"
        elif self.columns not in (0, self.dim_v):
            dims += f" ({self.columns} columns)"
        variant = ("plain", "general")[self.general] if self.dtype in ("bf16", "fp16") else "exact"
        return f"{self.kind}, {dims}, {self.rows} x {self.keys}, {variant}"

    @property
    def is_on_tensor_cores(self) -> bool:
        return self.stages > 0

    @property
    def warps(self) -> int:
        return self.threads // WARP


def _products(info: KernelInfo) -> tuple[list[tuple[int, int, int, bool]], int]:
    """The products of a tile, for a warp, as (rows, columns, length of the sums, are rows read from
    shared memory), and how many operands of the tile are copied: rows or keys by columns."""
    rows = info.rows // info.warps if info.kind == "forward" else 16
    if info.kind == "forward":
        return [
            (rows, info.keys, info.dim_qk, True),
            (rows, info.columns or info.dim_v, info.keys, False),
        ], info.keys
    other = info.keys if info.kind == "dQ" else info.rows
    sums = {"dQ": 1, "dK": 1, "dV": 1, "dK, dV": 2}[info.kind]
    scores = 1 if info.kind == "dV" else 2
    return (
        [(rows, other, info.dim_qk, True)] * scores
        + [(rows, info.columns or info.dim_v, other, False)] * sums
    ), other


def minimum(info: KernelInfo) -> dict[str, int]:
    """Instructions of a warp for a tile whose keys are all visible: mma of 16 x 8 x 16, ldmatrix of
    four 8 x 8 matrices, cp.async of 16 bytes a lane."""
    products, tile = _products(info)
    mma = sum(m // 16 * (n // 8) * (k // 16) for m, n, k, _ in products)
    loads = 0
    for m, n, k, are_rows_loaded in products:
        loads += (n // 16) * (k // 16)
        if are_rows_loaded:
            loads += (m // 16) * (k // 16)
    panels = -(-info.dim_qk // 64) - (-info.dim_v // 64)  # 64 columns each, K and V or Q and dO
    rows = products[0][0]
    exponentials = rows * tile // WARP
    if info.kind == "forward":
        exponentials += rows // 8  # of the old maximum, for each row a lane takes part in
    return {
        "HMMA": mma,
        "LDSM": loads,
        "LDGSTS": tile * 8 // info.threads * panels,
        "MUFU.EX2": exponentials,
        "BAR": 1 if info.stages == 2 else 2,
        "STS": 0,
    }


@dataclass
class Gpu:
    name: str
    architecture: str
    registers: int = 65536  # of an SM
    warps: int = 64
    shared_bytes: int = 0
    block_shared_bytes: int = 0
    mma_cycles: float = 0  # of m16n8k16 on an SM partition, by mma.sync
    l2_bytes: float = 0  # a cycle and SM


GPUS = (
    Gpu(
        "A100",
        "sm_80",
        shared_bytes=164 << 10,
        block_shared_bytes=163 << 10,
        mma_cycles=8,  # 1024 multiply-adds a cycle and SM
        l2_bytes=47,  # 5120 a cycle, 108 SMs
    ),
    Gpu(
        "H200",
        "sm_90",
        shared_bytes=228 << 10,
        block_shared_bytes=227 << 10,
        mma_cycles=6.5,  # 4 for wgmma, of which mma.sync reaches about 0.62
        l2_bytes=39,  # 5120 a cycle, 132 SMs
    ),
)


def blocks_per_sm(info: KernelInfo, registers: int, gpu: Gpu) -> int:
    """How many blocks fit on an SM: registers are given out to warps in units of 256."""
    if info.shared_bytes > gpu.block_shared_bytes:
        return 0
    of_warp = -(-registers * WARP // 256) * 256
    return min(
        gpu.registers // of_warp // info.warps,
        gpu.shared_bytes // (info.shared_bytes + 1024),
        gpu.warps // info.warps,
    )


def cycles(info: KernelInfo, counts: dict[str, int], instructions: int, gpu: Gpu) -> dict:
    """Cycles of an SM for one tile of one block, by what takes them. Its four partitions work side
    by side, a warp on each, some idle if there are fewer; shared memory and L2 serve all."""
    turns = -(-info.warps // 4)
    tile_bytes = counts["LDGSTS"] * info.threads * 16
    return {
        "tensor cores": turns * counts["HMMA"] * gpu.mma_cycles,
        "issue": turns * instructions,
        "exponentials": turns * counts["MUFU.EX2"] * 8,  # 16 a cycle and SM
        # 128 bytes a cycle: ldmatrix reads 512, the copies write what they bring.
        "shared memory": info.warps * counts["LDSM"] * 4 + tile_bytes / 128,
        "L2": tile_bytes / gpu.l2_bytes,
    }


def mma_share(info: KernelInfo, counts: dict[str, int], instructions: int, gpu: Gpu) -> float:
    """The share of the peak of mma that a kernel can reach if what takes longest never waits."""
    longest = max(cycles(info, counts, instructions, gpu).values())
    return info.warps / 4 * counts["HMMA"] * gpu.mma_cycles / longest
