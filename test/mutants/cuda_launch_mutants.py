"""Faults in what the host decides before a launch."""

from __future__ import annotations

from mutants import fault

BACKWARD_LAUNCH = "csrc/cuda/backward_launch.h"
GRID = "csrc/cuda/launch.h"
KEY_SPLIT = "csrc/cuda/key_split.h"

LAUNCHES = (
    fault(
        "keys that the band hides are split as well",
        KEY_SPLIT,
        "core::min64(sizes.seq_k, band)",
        "sizes.seq_k",
    ),
    fault(
        "keys are split into more chunks than can be merged",
        KEY_SPLIT,
        "core::min64(chunks, kMergeTile.most_chunks)",
        "chunks",
    ),
    fault(
        "there is no room for the chunks' maxima",
        KEY_SPLIT,
        "* (2 + sizes.dim_v)",
        "* (1 + sizes.dim_v)",
    ),
    fault(
        "blocks beyond the first dimension of the grid are lost",
        GRID,
        "core::ceil_div(blocks, x)",
        "blocks / x",
    ),
    fault(
        "blocks of rows are twice as long as the kernel's",
        GRID,
        ".panel_rows = block_rows,",
        ".panel_rows = 2 * block_rows,",
    ),
    fault(
        "rows are not prepared where nobody wants dQ",
        BACKWARD_LAUNCH,
        "is_wanted ? sizes.dim_qk : 1,",
        "is_wanted ? sizes.dim_qk : 0,",
    ),
    fault(
        "dV has as many slices as dK",
        BACKWARD_LAUNCH,
        "start_key_gradient<Value>(params, sizes.dim_v,",
        "start_key_gradient<Value>(params, sizes.dim_qk,",
    ),
    fault(
        "last block of keys has no gradient",
        BACKWARD_LAUNCH,
        "core::ceil_div(sizes.seq_k, C::kKeys)",
        "sizes.seq_k / C::kKeys",
    ),
    fault(
        "grad_output is copied in chunks whatever its rows are",
        BACKWARD_LAUNCH,
        "test(call.grad_output, sizes.dim_v) &&",
        "",
    ),
)
