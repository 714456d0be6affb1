"""Faults in the products of bf16 in pairs (avx512_bf16)."""

from __future__ import annotations

from mutants import BACKWARD, BACKWARD_TILE, FORWARD, KERNELS, SOFTMAX_TILE, Mutant, mutant

PAIRS = KERNELS + "bf16_pairs.h"
PAIR_ROWS = KERNELS + "pair_rows.h"
PAIR_PANEL = KERNELS + "backward_pair_panel.h"
SCORE = KERNELS + "score.h"


def pair_mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return mutant(f"pairs: {name}", file, old, new, isa="avx512_bf16")


PAIR_MUTANTS = (
    pair_mutant("scores are not scaled", SCORE, "scores, &scale);", "scores);"),
    pair_mutant(
        "dK is not scaled", BACKWARD, "C::kPaired ? static_cast<T>(problem.scale)", "false ? T(0)"
    ),
    pair_mutant(
        "a last key without a partner keeps what the scratch held",
        SOFTMAX_TILE,
        "if (span.end % 2 == 0) return;",
        "if (span.end % 2 == 0) return;\n  ++span.end;\n  return;",
    ),
    pair_mutant(
        "dP of a last key's partner may be NaN",
        BACKWARD_TILE,
        "some_hidden |= span.end % 2 != 0;",
        "",
    ),
    pair_mutant(
        "an odd dim has whatever lies behind it",
        PAIR_ROWS,
        "stride == 1 && n % 2 == 0 &&",
        "stride == 1 &&",
    ),
    pair_mutant(
        "strides of elements are ignored", PAIR_ROWS, "from + i * stride, 2);", "from + i, 2);"
    ),
    pair_mutant(
        "value of NaN meets weights of 0",
        PAIR_ROWS,
        "if (!check.all_finite()) {\n    remove",
        "if (false) {\n    remove",
    ),
    pair_mutant(
        "the partner of a value of NaN is removed, too",
        PAIR_ROWS,
        "x.bits &= others;",
        "x.bits = 0;",
    ),
    pair_mutant(
        "a value of Inf is not recorded",
        PAIR_ROWS,
        "if (non_finite != nullptr) non_finite->key[non_finite->count++] = j;",
        "",
    ),
    pair_mutant(
        "weight of a value of Inf is its partner's",
        FORWARD,
        "from_pair(pairs[j / 2 * C::kRows + lane], j)",
        "from_pair(pairs[j / 2 * C::kRows + lane], j + 1)",
    ),
    pair_mutant(
        "weight of a gradient of Inf is its neighbour's",
        BACKWARD_TILE,
        "from_pair(weights[(j * C::kRows + lane) / 2], lane)",
        "from_pair(weights[(j * C::kRows + lane) / 2], lane + 1)",
    ),
    pair_mutant(
        "weights are cut off instead of rounded",
        PAIRS,
        "return _mm512_cvtne2ps_pbh(odd, even);",
        "const auto cut = [](Vec<float> x) {\n"
        "    return bit_cast<Vec<float>>(bit_cast<WordVec>(x) & 0xFFFF0000U);\n"
        "  };\n"
        "  return _mm512_cvtne2ps_pbh(cut(odd), cut(even));",
    ),
    pair_mutant("grad_output of NaN meets weights of 0", PAIR_PANEL, "drop(lane);", ";"),
    pair_mutant(
        "a row of NaN stays among the rows",
        PAIR_PANEL,
        "if (all_finite(row, length)) continue;",
        "if (true) continue;",
    ),
    pair_mutant(
        "a row that sees nothing counts", PAIR_PANEL, "if (!counts[lane]) {", "if (false) {"
    ),
    pair_mutant(
        "rows of the two orders differ",
        PAIR_PANEL,
        "interleave_16(even + d, odd + d)",
        "interleave_16(odd + d, even + d)",
    ),
    pair_mutant(
        "NaN of the lane behind the last row counts",
        BACKWARD_TILE,
        "if (panel.rows->count % 2 != 0) drop",
        "if (false) drop",
    ),
    pair_mutant(
        "tiny scales are applied to overflowed sums",
        KERNELS + "kernels_bf16.cpp",
        "kLeastScale = 0x1p-16;",
        "kLeastScale = 0;",
    ),
)
