"""Faults in the CUDA kernels that the emulator must notice: what a GPU would hide as well."""

from __future__ import annotations

from cuda_exact_mutants import EXACT
from cuda_launch_mutants import LAUNCHES
from cuda_plain_mutants import PLAIN

from mutants import Edit, Mutant, fault

KERNELS = "csrc/cuda/kernels/"
TILE = KERNELS + "tile.h"
COPY = KERNELS + "copy.h"
BLOCK = KERNELS + "block.h"
SCORES = KERNELS + "scores.h"
SOFTMAX = KERNELS + "softmax.h"
FORWARD = KERNELS + "forward.h"
OUTPUT = KERNELS + "forward_output.h"
NON_FINITE = KERNELS + "non_finite.h"
DENSE_MASK = KERNELS + "dense_mask.h"
KEY_BLOCK = KERNELS + "key_block.h"
QUERY_GRADIENT = KERNELS + "backward_query.h"
KEY_GRADIENT = KERNELS + "backward_key.h"
STATISTICS = KERNELS + "backward_statistics.h"
EXACT_PRODUCT = KERNELS + "exact_product.h"
EXACT_BACKWARD = KERNELS + "exact_backward.h"
EXACT_QUERY_GRADIENT = KERNELS + "backward_exact_query.h"
EXACT_KEY_GRADIENT = KERNELS + "backward_exact_key.h"
MERGE = KERNELS + "merge.h"
LAUNCH = "csrc/cuda/forward_launch.h"


# Threads that do not wait for each other, or for a copy.
ORDER = (
    fault(
        "forward uses a tile before its copy has arrived",
        FORWARD,
        "cp_async_wait<0>();\n    if (!kOneStage &&",
        "if (!kOneStage &&",
        quick=True,
    ),
    fault(
        "forward waits for one group of copies too few",
        FORWARD,
        "cp_async_wait<0>();\n    if (!kOneStage &&",
        "cp_async_wait<1>();\n    if (!kOneStage &&",
    ),
    fault(
        "forward uses a tile before the other threads' copies have arrived",
        FORWARD,
        "} else {\n      block_sync();\n    }\n    if (kOneStage) {",
        "}\n    if (kOneStage) {",
    ),
    fault(
        "forward uses values before the other threads' copies have arrived",
        FORWARD,
        "block_sync();\n      if (has_next) copy_keys(tile + C::kKeys, 0);",
        "if (has_next) copy_keys(tile + C::kKeys, 0);",
    ),
    fault(
        "forward copies the next keys into the stage that is in use",
        FORWARD,
        "copy_keys(tile + C::kKeys, stage ^ 1);",
        "copy_keys(tile + C::kKeys, stage);",
        quick=True,
    ),
    fault(
        "forward does not switch stages",
        FORWARD,
        "if (!kOneStage) stage ^= 1;",
        "",
    ),
    fault(
        "forward copies the next tile before the others are done with this one",
        FORWARD,
        "cp_async_wait<0>();\n    if (!kOneStage && (some_hidden || has_mask)) {",
        "if (!kOneStage && has_next) copy_keys(tile + C::kKeys, stage ^ 1);\n"
        "    cp_async_commit();\n"
        "    cp_async_wait<0>();\n    if (!kOneStage && (some_hidden || has_mask)) {",
    ),
    fault(
        "warp reads its output from shared memory before all lanes have written it",
        OUTPUT,
        "warp_sync();\n  const int lane",
        "const int lane",
    ),
    fault(
        "warp writes its output over operands that its lanes still read",
        OUTPUT,
        "warp_sync();\n  FUSED_ATTENTION_UNROLL",
        "FUSED_ATTENTION_UNROLL",
    ),
    fault(
        "table of a block is read before it is filled",
        BLOCK,
        "store_shared(flag(), 0);\n    block_sync();",
        "store_shared(flag(), 0);",
    ),
    fault(
        "maximum of a row is exchanged by some lanes only",
        SOFTMAX,
        "largest = max_of_row(largest);",
        "if (thread_index() % 4 != 3) largest = max_of_row(largest);",
        quick=True,
    ),
    fault(
        "one warp leaves before the last barrier",
        FORWARD,
        "if (block_any(table.has_flag())) {",
        "if (thread_index() < kWarp && rows.count < 16) return;\n"
        "  if (block_any(table.has_flag())) {",
    ),
    fault(
        "dQ uses a tile before its copy has arrived",
        QUERY_GRADIENT,
        "cp_async_wait<0>();\n    // Inf and NaN of K",
        "// Inf and NaN of K",
    ),
    fault(
        "dQ overwrites a tile that others still read",
        QUERY_GRADIENT,
        "block_sync();\n      if (has_next) copy_tiles(tile + C::kKeys, 0);",
        "if (has_next) copy_tiles(tile + C::kKeys, 0);",
    ),
    fault(
        "dQ fills the mask's tile while others still read it",
        QUERY_GRADIENT,
        "if (has_mask) block_sync();",
        "",
    ),
    fault(
        "dK and dV overwrite a tile that others still read",
        KEY_GRADIENT,
        "block_sync();\n      if (has_next) copy_row_tile(first + C::kRows, 0);",
        "if (has_next) copy_row_tile(first + C::kRows, 0);",
    ),
    fault(
        "dK and dV fill the mask's tile while others still read it",
        KEY_GRADIENT,
        "if (has_mask) block_sync();",
        "",
    ),
    fault(
        "dK and dV copy the next rows into the stage that is in use",
        KEY_GRADIENT,
        "copy_row_tile(first + C::kRows, stage ^ 1);",
        "copy_row_tile(first + C::kRows, stage);",
    ),
    fault(
        "dQ puts values over keys that others still read",
        QUERY_GRADIENT,
        "block_sync();\n    reader(x, dim, tile)",
        "reader(x, dim, tile)",
    ),
    fault(
        "dQ uses values before the other threads' copies have arrived",
        QUERY_GRADIENT,
        "take_turn(problem.value, dim_v, tile);\n        block_sync();",
        "take_turn(problem.value, dim_v, tile);",
    ),
    fault(
        "dK puts rows of Q over rows of dO that others still read",
        KEY_GRADIENT,
        "block_sync();\n    copy_list(query_tile(0)",
        "copy_list(query_tile(0)",
    ),
    fault(
        "rows that take turns are used before they have arrived",
        KEY_GRADIENT,
        "cp_async_commit();\n    cp_async_wait<0>();\n  };",
        "cp_async_commit();\n  };",
    ),
)

# Which address is meant.
ADDRESSES = (
    fault(
        "reader of a tile forgets the permutation of its chunks",
        TILE,
        "kRowBytes + (chunk ^ (row & 7)) * kChunkBytes);\n  }\n  /// The fragment",
        "kRowBytes + chunk * kChunkBytes);\n  }\n  /// The fragment",
    ),
    Mutant(
        "chunks are not permuted, by anybody",
        (
            Edit(
                TILE,
                "kRowBytes + (chunk ^ (row & 7)) * kChunkBytes);\n  }\n  /// Two",
                "kRowBytes + chunk * kChunkBytes);\n  }\n  /// Two",
            ),
            Edit(
                TILE,
                "kRowBytes + (chunk ^ (row & 7)) * kChunkBytes);\n  }\n  /// The fragment",
                "kRowBytes + chunk * kChunkBytes);\n  }\n  /// The fragment",
            ),
            Edit(
                TILE,
                "(lane_base ^ column % kPanelColumns * 2)",
                "(lane_base + column % kPanelColumns * 2)",
            ),
            Edit(COPY, "((thread ^ row) & 7) * kChunkBytes", "(thread & 7) * kChunkBytes"),
        ),
        suite="emulator",
        quick=True,
    ),
    fault(
        "second panel of columns is not found",
        TILE,
        "column / kPanelColumns * TileType::kPanelBytes + row * kRowBytes",
        "row * kRowBytes",
    ),
    fault(
        "keys past the last one are copied",
        FORWARD,
        "key_tile(stage), seq_k - tile);",
        "key_tile(stage), C::kKeys);",
        quick=True,
    ),
    fault(
        "values past the last one are copied",
        FORWARD,
        "value_tile(stage), seq_k - tile);",
        "value_tile(stage), seq_k - tile + 1);",
    ),
    fault(
        "LSE of rows that do not exist is written",
        OUTPUT,
        "fragment_column() == 0 && row < rows.count) {",
        "fragment_column() == 0) {",
    ),
    fault(
        "columns past the last one are written",
        OUTPUT,
        "if (columns > 0) store_global(row, words);",
        "store_global(row, words);",
    ),
    fault(
        "query head h of a group reads head 0",
        BLOCK,
        "(rows.first_head + place.head) * x.stride_h",
        "rows.first_head * x.stride_h",
    ),
    fault(
        "groups of query heads begin at the wrong head",
        BLOCK,
        "block.head_kv * group,",
        "block.head_kv,",
    ),
    fault(
        "keys' gradients come from the first head of a group only",
        KERNELS + "row_list.h",
        "return {position, first_head + (short_row - position * short_group)};",
        "return {position, first_head};",
    ),
    fault(
        "rows need not begin at multiples of 16 bytes to be copied in chunks",
        LAUNCH,
        "aligned(x.stride_s) && aligned(x.stride_h)",
        "aligned(x.stride_h)",
    ),
    fault(
        "mask of keys that do not exist is read",
        DENSE_MASK,
        "if (exists && row < rows.count) {",
        "if (row < rows.count) {",
    ),
    fault(
        "values of a tile that nobody sees are not skipped",
        FORWARD,
        "value_reader.skip_rows(C::kKeys);",
        "",
    ),
)

# The formula, and which keys a row sees.
NUMBERS = (
    fault(
        "row of a partial tile does not see its last key",
        SCORES,
        "key >= first && key <= last ?",
        "key >= first && key < last ?",
        quick=True,
    ),
    fault(
        "row of a partial tile does not see its first key",
        SCORES,
        "key >= first && key <= last ?",
        "key > first && key <= last ?",
    ),
    fault(
        "key after the last one counts as one",
        SCORES,
        "band.high + position : seq_k - 1;",
        "band.high + position : seq_k;",
    ),
    fault(
        "tile whose last key is hidden from a row counts as full",
        BLOCK,
        "tile + kKeys <= full_end;",
        "tile + kKeys <= full_end + 1;",
    ),
    fault(
        "float mask is added to the wrong half of a row pair",
        DENSE_MASK,
        "add_mask(score, pair.value[i]);",
        "add_mask(score, pair.value[1 - i]);",
    ),
    fault(
        "new maximum does not rescale the output",
        SOFTMAX,
        "output.value[m][n][i + 1] *= rescale;",
        "",
    ),
    fault(
        "sum of a row lacks two of its four lanes",
        SOFTMAX,
        "x += shuffle_xor(x, 1);",
        "",
    ),
    fault(
        "row that sees nothing has weights of NaN",
        SOFTMAX,
        "largest == -kInfinity ? 0.0F : exponent.shift_of(largest)",
        "exponent.shift_of(largest)",
    ),
    fault(
        "scale is not applied where it is not positive",
        FORWARD,
        "scores.scale(params.scale);",
        "scores.scale(params.scale > 0 ? params.scale : -params.scale);",
    ),
    fault(
        "value of NaN meets weights of 0",
        NON_FINITE,
        "if (found != 0) {",
        "if (false && found != 0) {",
    ),
    fault(
        "value of NaN is added to rows that do not see it",
        NON_FINITE,
        "bool sees = band.sees(place.position, key);",
        "bool sees = true || band.sees(place.position, key);",
    ),
    fault(
        "delta lacks the gradient of LSE",
        STATISTICS,
        "result.delta -= load_global",
        "result.delta -= 0 * load_global",
    ),
    fault(
        "coarse LSE is not refined",
        QUERY_GRADIENT,
        "if (block_any(coarse)) {",
        "if (block_any(false && coarse)) {",
    ),
    fault(
        "dQ lacks the scale",
        QUERY_GRADIENT,
        "{{params.scale, params.scale}}",
        "{{1.0F, 1.0F}}",
    ),
    fault(
        "key does not see the last row that sees it",
        KEY_GRADIENT,
        "key >= x.position + lower && key <=",
        "key > x.position + lower && key <=",
    ),
    fault(
        "key does not see the first row that sees it",
        KEY_GRADIENT,
        "key <= x.position + upper && key < seq_k",
        "key < x.position + upper && key < seq_k",
    ),
    fault(
        "rows of the last position that sees a key are left out",
        KEY_BLOCK,
        "block.end = empty ? 0 : positions.end * block.rows.group;",
        "block.end = empty ? 0 : positions.end * block.rows.group - 1;",
    ),
    fault(
        "grad_output of NaN meets weights of 0",
        KEY_GRADIENT,
        "if (C::kWantsValue && !kInTurns) {",
        "if (false && C::kWantsValue && !kInTurns) {",
    ),
)

# Kernels without tensor cores, slices of columns, chunks of keys.
OTHERS = (
    fault(
        "exact product uses a chunk of columns before the other threads have loaded it",
        EXACT_PRODUCT,
        "block_sync();\n    multiply_exact_rows(",
        "multiply_exact_rows(",
    ),
    fault(
        "exact dK and dV overwrite a tile's statistics while others use them",
        EXACT_KEY_GRADIENT,
        "block_sync();\n    x.load_rows(first);",
        "x.load_rows(first);",
    ),
    fault(
        "exact dK overwrites the weights of dV while others use them",
        EXACT_KEY_GRADIENT,
        "if (C::kWantsValue) block_sync();",
        "if (false && C::kWantsValue) block_sync();",
    ),
    fault(
        "exact dK and dV see one key too many",
        EXACT_KEY_GRADIENT,
        "key <= position + upper;",
        "key <= position + upper + 1;",
    ),
    fault(
        "NaN meets the gradient of a hidden score",
        EXACT_BACKWARD,
        "? -T(0) : gradient",
        "? T(0) : gradient",
    ),
    fault(
        "NaN meets the weight of a hidden score",
        EXACT_BACKWARD,
        "? -T(0) : weight",
        "? T(0) : weight",
    ),
    fault(
        "exact dQ does not refine a coarse LSE",
        EXACT_QUERY_GRADIENT,
        "if (core::logsumexp_is_coarse(load_global",
        "if (false && core::logsumexp_is_coarse(load_global",
    ),
    fault(
        "every slice of a gradient is the first",
        TILE,
        "return {base + column / kPanelColumns * kPanelBytes};",
        "return {base + 0 * column};",
    ),
    fault(
        "every slice of dQ writes the statistics",
        QUERY_GRADIENT,
        "if (first_column == 0) {",
        "if (first_column >= 0) {",
    ),
    fault(
        "grad_output of NaN is added to the columns of the first slice",
        KEY_BLOCK,
        "const int column = first_column + fragment_column();",
        "const int column = 0 * first_column + fragment_column();",
    ),
    fault(
        "chunks of keys overlap",
        BLOCK,
        "const int end = first_of(chunk.index + 1);",
        "const int end = first_of(chunk.index + 1) + tile_keys;",
    ),
    fault(
        "merge uses weights before the other lanes have stored them",
        MERGE,
        "warp_sync();",
        "",
    ),
    fault(
        "merge adds the sums of chunks with different maxima",
        MERGE,
        "fused_multiply_add(weight, softmax.value[1], total)",
        "softmax.value[1] + total",
    ),
)

# Kernels for the least shared memory.
LITTLE_SHARED = (
    fault(
        "kernels are started that take more shared memory than the GPU has",
        LAUNCH,
        "} else if (Usual::kSharedBytes <= launcher.most_shared_bytes()) {",
        "} else if (true) {",
    ),
    fault(
        "keys of NaN come back with the second copy",
        QUERY_GRADIENT,
        "if (some_hidden || has_mask) clear_own_non_finite<E>(Lane(), key_tile(0), table);",
        "",
    ),
    fault(
        "rows of dO that take Q's place keep their NaN",
        KEY_GRADIENT,
        "if (C::kWantsValue && (some_hidden || has_mask)) {",
        "if (false && C::kWantsValue && (some_hidden || has_mask)) {",
    ),
    fault(
        "rows of 16 mask values lie in the same banks",
        DENSE_MASK,
        "return kKeys % kWarp == 0 ? row :",
        "return true ? row :",
    ),
)

CUDA_MUTANTS = (*ORDER, *ADDRESSES, *NUMBERS, *OTHERS, *LITTLE_SHARED, *EXACT, *LAUNCHES, *PLAIN)
