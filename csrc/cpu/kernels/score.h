// Score policies: what happens to scale * (q . k) before the mask, and to its gradient.
//
// A policy has `forward(scores, span, rows)`, applied to a panel's scores of one tile, and
// `backward(grads, ...)`, which turns the gradient of its result into that of its argument.
#pragma once

#include "dense_mask.h"
#include "panel.h"
#include "products.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// The score as it is.
struct PlainScore {
  template <class C>
  FUSED_ATTENTION_INLINE static void forward(typename C::Scalar*, TileSpan, const PanelRows<C>&) {}
  template <class C>
  FUSED_ATTENTION_INLINE static void backward(typename C::Scalar*, TileSpan, const PanelRows<C>&) {}
};

/// Scores S^T (keys x rows) of one panel and one tile: the product, the score policy, the masks.
/// Defined for the keys span.begin <= j < span.end; false where the dense mask hides them all, and
/// nothing is computed. `keys`: the tile's keys, in one of the forms of products.h; `mask_buffer`:
/// kMaskBuffer elements.
template <class C, class Keys>
FUSED_ATTENTION_INLINE bool score_tile(const core::Problem& problem, const PanelRows<C>& rows,
                                       std::int64_t tile_first, TileSpan span, const Keys& keys,
                                       const typename C::Element* queries,
                                       typename C::Scalar* mask_buffer,
                                       typename C::Scalar* scores) {
  using T = typename C::Scalar;
  const bool masked = problem.mask.data != nullptr;
  MaskTile<T> mask{MaskTile<T>::Kind::kHidesNothing};
  if (masked) {
    mask = load_mask_tile<C>(problem.mask, rows, tile_first, span, mask_buffer);
    if (mask.kind == MaskTile<T>::Kind::kHidesAll) return false;
  }
  if constexpr (C::kPaired) {  // their queries are as they are stored
    const T scale = static_cast<T>(problem.scale);
    dot_with_keys<C>(span, keys, problem.sizes.dim_qk, rows, queries, scores, &scale);
  } else {
    dot_with_keys<C>(span, keys, problem.sizes.dim_qk, rows, queries, scores);
  }
  C::Score::template forward<C>(scores, span, rows);
  if (masked) apply_mask_tile<C>(mask, span, scores);
  // After the mask, which keeps every sum finite: what is hidden by the band stays -inf.
  if (span.begin < span.full_begin || span.full_end < span.end) {
    hide_by_band<C>(problem.band, rows, tile_first, span, scores);
  }
  return true;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
