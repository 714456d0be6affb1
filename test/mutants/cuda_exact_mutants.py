"""Faults in the forward kernels without tensor cores."""

from __future__ import annotations

from mutants import fault

EXACT_SCORES = "csrc/cuda/kernels/exact_scores.h"
EXACT_FORWARD = "csrc/cuda/kernels/forward_exact.h"

EXACT = (
    fault(
        "exact forward reads the mask of keys that do not exist",
        EXACT_SCORES,
        "if (exists && row < rows.count) {",
        "if (row < rows.count) {",
    ),
    fault(
        "exact forward fills the mask's tile while others still read the weights there",
        EXACT_SCORES,
        "block_sync();\n      const bool any",
        "const bool any",
    ),
    fault(
        "exact forward sees keys that do not exist",
        EXACT_SCORES,
        "tile + key < seq_k && band.sees(",
        "band.sees(",
    ),
    fault(
        "exact softmax does not rescale its sum",
        EXACT_SCORES,
        "sum *= rescale;",
        "",
    ),
    fault(
        "exact row that sees nothing has weights of NaN",
        EXACT_SCORES,
        "largest == kMinusInfinity ? T(0) : largest;",
        "largest;",
    ),
    fault(
        "NaN meets the weight of a hidden score in the exact forward kernels",
        EXACT_SCORES,
        "score == kMinusInfinity ? -T(0) :",
        "score == kMinusInfinity ? T(0) :",
    ),
    fault(
        "exact forward does not rescale its output",
        EXACT_FORWARD,
        "output[r][c] *= rescale;",
        "output[r][c] *= 1;",
    ),
    fault(
        "every slice of the exact output writes LSE",
        EXACT_FORWARD,
        "rows.first_value == 0 && exact_lane() == 0) {",
        "exact_lane() == 0) {",
    ),
    fault(
        "partial sums of rows that do not exist are written",
        EXACT_FORWARD,
        "if (row >= rows.count) continue;",
        "",
    ),
    fault(
        "exact forward takes a partial tile for a full one",
        EXACT_FORWARD,
        "!keys.template is_full<C::kKeys>(tile);",
        "false;",
    ),
)
