"""Faults in the CPU path that the tests must notice: each a small change to the text."""

from __future__ import annotations

from typing import NamedTuple

MASK = "csrc/core/mask.h"
SOFTMAX = "csrc/core/online_softmax.h"
KERNELS = "csrc/cpu/kernels/"
PANEL = KERNELS + "panel.h"
DENSE_MASK = KERNELS + "dense_mask.h"
MASK_VALUES = KERNELS + "mask_values.h"
PACK = KERNELS + "pack.h"
ROW_TILE = KERNELS + "row_tile.h"
FEW_ROWS = KERNELS + "few_rows.h"
PRODUCTS = KERNELS + "products.h"
BACKWARD = KERNELS + "backward.h"
PANEL_IO = KERNELS + "panel_io.h"
BACKWARD_TILE = KERNELS + "backward_tile.h"
BACKWARD_PANEL = KERNELS + "backward_panel.h"
FORWARD = KERNELS + "forward.h"
CONVERT = KERNELS + "convert.h"
SOFTMAX_TILE = KERNELS + "softmax.h"


class Edit(NamedTuple):
    file: str
    old: str  # stands exactly once in the file
    new: str


class Mutant(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    isa: str = ""  # the one ISA whose code it changes
    suite: str = "kernels"  # whose tests must notice it: see __main__.py
    quick: bool = False  # among those that `make test` tries


def mutant(name: str, file: str, old: str, new: str, isa: str = "") -> Mutant:
    return Mutant(name, (Edit(file, old, new),), isa)


def fault(
    name: str, file: str, old: str, new: str, quick: bool = False, suite: str = "emulator"
) -> Mutant:
    return Mutant(name, (Edit(file, old, new),), suite=suite, quick=quick)


# Which keys a row sees.
VISIBILITY = (
    mutant(
        "causal mask shows one key too many",
        MASK,
        "min64(band.upper, diagonal_offset)",
        "min64(band.upper, diagonal_offset + 1)",
    ),
    mutant(
        "diagonal_offset has the wrong sign",
        MASK,
        "min64(band.upper, diagonal_offset)",
        "min64(band.upper, -diagonal_offset)",
    ),
    mutant(
        "window's left end is one key late",
        MASK,
        "diagonal_offset - window_left;",
        "diagonal_offset - window_left + 1;",
    ),
    mutant(
        "window's right end is one key early",
        MASK,
        "diagonal_offset + window_right;",
        "diagonal_offset + window_right - 1;",
    ),
    mutant(
        "row of a partial tile does not see its first key",
        PANEL,
        "key >= load(low",
        "key > load(low",
    ),
    mutant(
        "row of a partial tile does not see its last key",
        PANEL,
        "key <= load(high",
        "key < load(high",
    ),
    mutant(
        "last partial key before the full ones is shown to every row",
        PANEL,
        "hide(span.begin, span.full_begin)",
        "hide(span.begin, span.full_begin - 1)",
    ),
    Mutant(
        "tail of the last tile counts as keys",
        (
            Edit(FORWARD, "core::min64(kTileKeys, sizes.seq_k - first)", "kTileKeys"),
            Edit(
                PANEL,
                "seq_k = problem.sizes.seq_k;",
                "seq_k = round_up(problem.sizes.seq_k, kTileKeys);",
            ),
        ),
    ),
    mutant(
        "bool mask in bits is inverted at the end of a tile",
        DENSE_MASK,
        "store(at, bits[v] < 0 ? load(at)",
        "store(at, (bits[v] < 0) != (j == kTileKeys - 1) ? load(at)",
    ),
    mutant("bool mask reads the low bits of a byte only", DENSE_MASK, "bytes |= bytes >> 4;", ""),
    mutant(
        "bool mask of all rows is inverted at the end of a tile",
        MASK_VALUES,
        "from[j * mask.stride_k] != 0 ?",
        "(from[j * mask.stride_k] != 0) != (j == kTileKeys - 1) ?",
    ),
    mutant(
        "float mask is added twice",
        MASK_VALUES,
        "sum = score + mask;",
        "sum = score + mask + mask;",
    ),
    mutant(
        "score and mask that overflow together hide the key",
        MASK_VALUES,
        "too_low ? -most : sum;",
        "sum;",
    ),
    mutant("score and mask that overflow upwards are NaN", MASK_VALUES, "too_high ? most : ", ""),
    mutant(
        "mask of -inf leaves NaN alone",
        MASK_VALUES,
        "return mask == splat(-kInfinity<T>) ? mask : sum;",
        "return sum;",
    ),
    mutant(
        "mask of half a unit in the last place is not bounded",
        MASK_VALUES,
        "T(0x1p25) : T(0x1p54)",
        "T(0x1p24) : T(0x1p53)",
    ),
    mutant(
        "large mask values beside -inf are not bounded",
        MASK_VALUES,
        "return shown.all_finite() ? Adding::kHiding : Adding::kBounded;",
        "return Adding::kHiding;",
    ),
    mutant(
        "float mask that hides all of the first row hides the tile",
        MASK_VALUES,
        "r < count && !visible; ++r",
        "r < 1 && !visible; ++r",
    ),
    mutant(
        "bits of an incomplete word are those of other keys",
        DENSE_MASK,
        "bits[v] <<= kWordKeys - keys;",
        "",
    ),
)

# Which element is read, and when.
ADDRESSES = (
    mutant(
        "query head h reads kv head h % Hkv",
        PANEL,
        "block.head_kv * group + in_group;",
        "block.head_kv + in_group * sizes.heads_kv;",
    ),
    mutant(
        "grad_output is read with stride 1",
        BACKWARD_PANEL,
        "copy_padded(read(call.grad_output, dim_v)",
        "auto unit = call.grad_output;\n unit.stride_d = 1;\n copy_padded(read(unit, dim_v)",
    ),
    mutant(
        "K and V of batch 1 keep their batch stride",
        "csrc/attention_check.cpp",
        "operand->stride_b = 0;",
        "operand->stride_b += 0;",
    ),
    mutant(
        "merged chunks are written to another row block",
        "csrc/cpu/run.cpp",
        "plan.rows.blocks - 1 - pair % plan.rows.blocks",
        "pair % plan.rows.blocks",
    ),
    mutant(
        "blocks of a head do not wait for each other",
        KERNELS + "backward.h",
        "!= block) sched_yield()",
        "!= block && false) sched_yield()",
    ),
)

# The formula.
NUMBERS = (
    mutant(
        "dQ lacks the scale",
        BACKWARD_PANEL,
        "return static_cast<T>(problem.scale);",
        "return T(1);",
    ),
    mutant(
        "dK lacks the scale",
        BACKWARD_PANEL,
        "panel.non_finite[0] = 0;",
        "for (int n = 0; n < rows.count * ld_qk; ++n) panel.queries[n] /= T(problem.scale);\n"
        "panel.non_finite[0] = 0;",
    ),
    mutant(
        "LSE takes the logarithm to base 2",
        SOFTMAX,
        "return __builtin_log(x);",
        "return __builtin_log2(x);",
    ),
    mutant(
        "delta lacks the gradient of LSE",
        BACKWARD_PANEL,
        "panel.delta[lane] = -static_cast",
        "panel.delta[lane] = 0 * -static_cast",
    ),
    mutant(
        "new maximum does not rescale the sum",
        SOFTMAX_TILE,
        "load(sum + v * L) * rescale + total",
        "load(sum + v * L) + total",
    ),
    mutant(
        "new maximum does not rescale the output",
        KERNELS + "gemm.h",
        "load(c + m * ldc + v * L) * load(scale + v * L)",
        "load(c + m * ldc + v * L)",
    ),
    mutant(
        "chunks are merged without their weights",
        FORWARD,
        "weight * load(from.output",
        "load(from.output",
    ),
    mutant(
        "coarse LSE is not refined",
        BACKWARD_PANEL,
        "if (!coarse) return;",
        "if (coarse || !coarse) return;",
    ),
    mutant(
        "LSE counts as coarse a thousand times too late",
        SOFTMAX,
        "magnitude > 128 &&",
        "magnitude > 128000 &&",
    ),
    mutant(
        "keys past the end of a span add what the scratch held",
        BACKWARD_TILE,
        "(round_up(span.end, M) - span.end) * kRowSize",
        "(0 * (round_up(span.end, M) - span.end)) * kRowSize",
    ),
    mutant(
        "fp16 is truncated",
        CONVERT,
        "magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U",
        "magnitude - 0x38000000U",
        isa="generic",
    ),
    mutant(
        "fp16 is truncated (AVX2)",
        CONVERT,
        "_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT",
        "_mm256_cvtps_ph(v, _MM_FROUND_TO_ZERO",
        isa="avx2",
    ),
    mutant(
        "fp16 is truncated (AVX-512)",
        CONVERT,
        "_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT",
        "_mm512_cvtps_ph(v, _MM_FROUND_TO_ZERO",
        isa="avx512",
    ),
    mutant(
        "bf16 rounds ties away from zero",
        CONVERT,
        "rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;\n  const WordVec",
        "rounded = (bits + 0x8000U) >> 16;\n  const WordVec",
    ),
)

# NaN and Inf where nobody sees them.
HIDDEN = (
    mutant(
        "value of NaN meets weights of 0",
        PACK,
        "if (!check.all_finite()) remove",
        "if (false) remove",
    ),
    mutant(
        "value or key of NaN meets weights of 0 where it is read by rows",
        ROW_TILE,
        "check.add(tile.data + j * tile.ld, dim);\n  if (check.all_finite()) return tile;",
        "check.add(tile.data + j * tile.ld, dim);\n  if (true) return tile;",
    ),
    mutant(
        "value of NaN is added to rows that do not see it",
        FORWARD,
        "if (!sees<C>(",
        "if (false && !sees<C>(",
    ),
    mutant(
        "weight of a hidden key is NaN where LSE is",
        BACKWARD_TILE,
        "if constexpr (some_hidden) p[i] =",
        "if constexpr (some_hidden && false) p[i] =",
    ),
    mutant(
        "score gradient of a hidden key is NaN where dP is",
        BACKWARD_TILE,
        "if constexpr (some_hidden) grad[i] =",
        "if constexpr (some_hidden && false) grad[i] =",
    ),
    mutant(
        "grad_output of NaN meets weights of 0",
        BACKWARD_PANEL,
        "if (all_finite(grad, dim_v)) continue;",
        "continue;",
    ),
    mutant(
        "grad_output of NaN is added to keys that its row does not see",
        BACKWARD_TILE,
        "if (!sees<C>(",
        "if (false && !sees<C>(",
    ),
    mutant(
        "row that sees nothing has weights of NaN",
        SOFTMAX_TILE,
        "largest == splat(-kInfinity<T>) ? Vec<T>{} : largest",
        "largest",
    ),
)

# What cutting a call into items must not change.
CUT = (
    mutant("second tail of a block skips rows", PANEL, "first += Tail::kRows", "first += C::kRows"),
    mutant(
        "dQ of the last chunk of keys is lost",
        BACKWARD,
        "chunk < plan.chunks; ++chunk",
        "chunk + 1 < plan.chunks; ++chunk",
    ),
    mutant(
        "zero of an output keeps the sign of its cut",
        PANEL_IO,
        "[first + lane] + T(0)",
        "[first + lane]",
    ),
    mutant(
        "zero of dK or dV keeps the sign of its cut", BACKWARD, " * factor + T(0);", " * factor;"
    ),
    mutant(
        "tiles share their sums though rows come in blocks",
        BACKWARD_TILE,
        "tile_stride = row_blocks > 1 ? kTileKeys : 0;",
        "tile_stride = 0;",
    ),
    mutant(
        "sums of a tile are not cleared for the next",
        BACKWARD,
        "if (item.block > 0) return;",
        "if (item.block > 0 || tile > item.chunk * plan.chunk_tiles) return;",
    ),
    mutant(
        "subnormal half is read through a denormal float",
        CONVERT,
        "bit_cast<float>(magnitude + kRebias + 0x00800000U) - 0x1p-14F",
        "bit_cast<float>(magnitude) * 0x1p112F",
    ),
)

# The forms in which few rows meet a tile.
FEW = (
    mutant(
        "few rows: sums of earlier tiles keep the old maximum",
        PRODUCTS,
        "if (alpha != nullptr) scale_few_rows(",
        "if (false) scale_few_rows(",
    ),
    mutant(
        "few rows: keys past the last whole group have no scores",
        FEW_ROWS,
        "for (; j < span.end; ++j) {",
        "for (; j < span.begin; ++j) {",
    ),
    mutant(
        "few rows: the last row of an odd number has no output",
        FEW_ROWS,
        "if (left > 0) accumulate_columns",
        "if (left > 2) accumulate_columns",
    ),
    Mutant(
        "few rows: dims past the last count",
        (
            Edit(
                PANEL_IO,
                "for (; i < length; ++i) to[i] = 0;",
                "for (; i < length; ++i) to[i] = 1;",
            ),
            Edit(
                ROW_TILE,
                "for (int d = length; d < padded; ++d) row[d] = 0;",
                "for (int d = length; d < padded; ++d) row[d] = 1;",
            ),
        ),
    ),
    mutant(
        "few rows: sums of NaN stay where no row sees the value",
        FORWARD,
        "if (all_finite(panel.output, static_cast<int>(length))) return;",
        "return;",
    ),
    mutant(
        "non-finite value goes to the place of a panel's lanes",
        PRODUCTS,
        "return lane * vector_length<typename C::Scalar>(dim) + d;",
        "return d * C::kRows + lane;",
    ),
)

CPU_MUTANTS = (*VISIBILITY, *ADDRESSES, *NUMBERS, *HIDDEN, *CUT, *FEW)
