// Score policies: what happens to scale * (q . k) before the mask, and to its gradient.
//
// A policy has `forward(scores, span, rows)`, applied to a panel's scores of one tile, and
// `backward(grads, ...)`, which turns the gradient of its result into that of its argument.
#pragma once

#include "gemm.h"
#include "panel.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// The score as it is.
struct PlainScore {
  template <class C>
  FUSED_ATTENTION_INLINE static void forward(typename C::Scalar*, TileSpan, const PanelRows<C>&) {}
  template <class C>
  FUSED_ATTENTION_INLINE static void backward(typename C::Scalar*, TileSpan, const PanelRows<C>&) {}
};

/// Scores S^T (keys x rows) of one panel and one tile: the product, the score policy, the masks.
/// Defined for the keys span.begin <= j < span.end; `mask_buffer`: kMaskBuffer elements.
template <class C>
FUSED_ATTENTION_INLINE void score_tile(const core::Problem& problem, const PanelRows<C>& rows,
                                       std::int64_t tile_first, TileSpan span,
                                       const typename C::Scalar* keys_by_key,
                                       const typename C::Scalar* queries,
                                       typename C::Scalar* mask_buffer,
                                       typename C::Scalar* scores) {
  constexpr int M = C::kBroadcast;
  const int dim = static_cast<int>(problem.sizes.dim_qk);
  const int groups = (span.end - span.begin + M - 1) / M;
  multiply_groups<typename C::Scalar, M, C::kVectors, Into::kOverwrite>(
      groups, dim, keys_by_key + static_cast<std::int64_t>(span.begin) * dim,
      static_cast<std::int64_t>(M) * dim, queries, scores + span.begin * C::kRows);
  C::Score::template forward<C>(scores, span, rows);
  if (problem.mask.data != nullptr) {
    apply_dense_mask<C>(problem.mask, rows, tile_first, span, mask_buffer, scores);
  }
  // After the mask, which keeps every sum finite: what is hidden by the band stays -inf.
  if (span.begin < span.full_begin || span.full_end < span.end) {
    hide_by_band<C>(problem.band, rows, tile_first, span, scores);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
