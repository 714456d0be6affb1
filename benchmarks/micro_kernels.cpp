// Compiled once per ISA with the flags of the kernels, whose headers have internal linkage. Plain
// functions and data leave it, so that nothing compiled for an ISA can stand in for common code.
#include "micro_kernels.h"

#include "cpu/kernels/backward.h"
#include "cpu/kernels/forward_panel.h"
#include "cpu/kernels/softmax.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
using Wide = Config<BFloat16Pair, kWideVectors, kWideBroadcast, PlainScore>;
constexpr BFloat16Pair kHalf{0x3F003F00};
#else
using Wide = Config<float, kWideVectors, kWideBroadcast, PlainScore>;
constexpr float kHalf = 0.5F;
#endif
using E = Wide::Element;
using Narrow = Config<float, 1, kNarrowBroadcast, PlainScore>;
constexpr int kMostDims = 128;
constexpr int kStride = kMostDims + 64 / static_cast<int>(sizeof(float));
constexpr TileSpan kWholeTile{0, kTileKeys, 0, kTileKeys};

/// A number that the compiler does not know, as it does not know the sizes of a call.
template <class T>
FUSED_ATTENTION_INLINE T unknown(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

FUSED_ATTENTION_INLINE TileSpan whole_tile() {
  TileSpan span = kWholeTile;
  span.end = unknown(span.end);
  return span;
}

struct Memory {
  alignas(64) float stored[kTileKeys * kMostDims];
  alignas(64) std::uint16_t stored_half[kTileKeys * kMostDims];
  alignas(64) E by_key[kTileKeys * kMostDims];
  alignas(64) E by_dim[kMostDims / kWideBroadcast * kGroupStride<E, kWideBroadcast>];
  alignas(64) E queries[kMostDims * Wide::kRows];  // [D][rows]
  alignas(64) E grads[Wide::kRows * kStride];      // [rows][D padded]
  alignas(64) float output[kMostDims * Wide::kRows];
  alignas(64) float scores[kTileKeys * Wide::kRows];
  alignas(64) E weights[kTileKeys * Wide::kRows];  // of whole rows or pairs of them
  alignas(64) float key_sums[kTileKeys * kStride];
  alignas(64) float max[Wide::kRows];
  alignas(64) float sum[Wide::kRows];
  alignas(64) float alpha[Wide::kRows];
  alignas(64) float buffer[Wide::kRows * kStride];
  PanelRows<Wide> rows;

  Memory() {
    const auto fill = [](auto& array, auto value) {
      for (auto& x : array) x = value;
    };
    fill(stored, 0.5F);
    fill(stored_half, std::uint16_t{0x3C00});
    fill(by_key, kHalf);
    fill(by_dim, kHalf);
    fill(queries, kHalf);
    fill(grads, kHalf);
    fill(weights, kHalf);
    fill(output, 0.0F);
    fill(scores, 0.5F);
    fill(key_sums, 0.0F);
    fill(max, 0.0F);
    fill(sum, 0.0F);
    fill(alpha, 0.5F);
    fill(buffer, 0.0F);
    core::Sizes sizes{1, 1, 1, Wide::kRows, kTileKeys, kMostDims, kMostDims};
    place_rows<Wide>(sizes, core::RowBlock{0, 0, 0, Wide::kRows}, 0, rows);
  }
};

/// Made on the first use: a constructor of a global would run on CPUs that lack the ISA.
Memory& memory() {
  static Memory made;
  // Whatever was stored counts as used, and whatever is loaded as new.
  asm volatile("" : : "r"(&made) : "memory");
  return made;
}

/// S^T = K Q^T of a tile.
template <int dim>
void scores() {
  Memory& m = memory();
  constexpr int M = kWideBroadcast;
  dot_with_keys<Wide>(whole_tile(), factors_by_key<E, M>(PackedTile<E>{m.by_key}, unknown(dim)),
                      unknown(dim), m.rows, m.queries, m.scores);
  memory();
}

/// O^T += V^T P^T of a tile.
template <int dim>
void output() {
  Memory& m = memory();
  constexpr int M = kWideBroadcast;
  sum_over_keys<Wide>(whole_tile(), factors_by_dim<E, M>(PackedTile<E>{nullptr, m.by_dim}),
                      unknown(dim), m.rows, m.scores, m.alpha, m.output);
  memory();
}

/// dV += P^T dO of a tile.
template <int dim>
void key_gradient() {
  Memory& m = memory();
  accumulate_keys<Wide>(whole_tile(), Wide::kRows, m.weights, m.grads, unknown(dim), m.key_sums,
                        padded_length<float>(dim));
  memory();
}

#if !defined(FUSED_ATTENTION_ISA_AVX512_BF16)  // what avx512_bf16 leaves to avx512
/// As scores and output with one vector of rows, K and V by rows as they are stored: decoding.
template <int dim>
void narrow_scores() {
  Memory& m = memory();
  constexpr int M = kNarrowBroadcast;
  const RowTile<float> tile{m.stored, unknown(dim)};
  multiply_groups<float, M, 1, Into::kOverwrite>(
      kTileKeys / M, unknown(dim), factors_by_key<float, M>(tile), m.queries, m.scores);
  memory();
}
template <int dim>
void narrow_output() {
  Memory& m = memory();
  constexpr int M = kNarrowBroadcast;
  const RowTile<float> tile{m.stored, unknown(dim)};
  multiply_groups<float, M, 1, Into::kScaleThenAdd>(unknown(dim) / M, unknown(kTileKeys),
                                                    factors_by_dim<float, M>(tile), m.scores,
                                                    m.output, m.alpha);
  memory();
}
#endif

void softmax() {
  Memory& m = memory();
  softmax_tile<Wide>(whole_tile(), m.scores, m.max, m.sum, m.alpha);
  memory();
}

[[maybe_unused]] void exponential() {
  Memory& m = memory();
  const int count = unknown(kTileKeys * Wide::kRows);
  constexpr int L = kLanes<float>;
  for_each_in_turn(0, count / L, [&](int i, auto vectors) FUSED_ATTENTION_LAMBDA {
    constexpr int N = decltype(vectors)::value;
    Vec<float> x[N];
    for (int v = 0; v < N; ++v) x[v] = load(m.scores + (i + v) * L) - splat(1.0F);
    exp_nonpositive<float>(x);
    for (int v = 0; v < N; ++v) store(m.scores + (i + v) * L, x[v]);
  });
  memory();
}

template <DType dtype>
constexpr bool kIsHalf = dtype == DType::kBFloat16 || dtype == DType::kFloat16;

template <DType dtype>
core::ConstOperand stored(const Memory& m, std::int64_t dim) {
  const void* data = m.stored;
  if constexpr (kIsHalf<dtype>) data = m.stored_half;
  return {data, 0, 0, dim, 1};
}

/// A tile of K (by key) or V (by dim) into its packed form.
template <DType dtype, int dim, bool by_key>
void pack() {
  Memory& m = memory();
  PackedTile<E> tile;
  (by_key ? tile.by_key : tile.by_dim) = by_key ? m.by_key : m.by_dim;
  NonFinite non_finite;
  const core::ConstOperand x = stored<dtype>(m, unknown(dim));
  pack_tile<kWideBroadcast>(
      {dtype, x.data, 0, x.stride_s, x.stride_d, unknown(kTileKeys), unknown(dim)}, m.buffer, tile,
      by_key ? nullptr : &non_finite);
  memory();
}

/// Rows of Q into the lanes of a panel, and out of the lanes as rows of O.
template <int dim>
void transpose_in() {
  Memory& m = memory();
#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
  load_pair_panel<Wide>(stored<DType::kBFloat16>(m, unknown(dim)), m.rows, unknown(dim), m.buffer,
                        m.queries);
#else
  load_panel<Wide>(DType::kFloat32, stored<DType::kFloat32>(m, unknown(dim)), m.rows, unknown(dim),
                   0.125F, m.buffer, m.queries);
#endif
  memory();
}
template <int dim>
void transpose_out() {
  Memory& m = memory();
  store_panel<Wide>(
      DType::kFloat32, core::Operand{m.key_sums, 0, 0, unknown(dim), 1}, m.rows, unknown(dim),
      [&](int lane) { return m.alpha[lane]; }, m.output, m.buffer);
  memory();
}

#if !defined(FUSED_ATTENTION_ISA_AVX512_BF16)
template <DType dtype>
void widen() {
  Memory& m = memory();
  load_row<float>(dtype, m.stored_half, 0, 1, unknown(kTileKeys * kMostDims), m.key_sums);
  memory();
}
template <DType dtype>
void narrow() {
  Memory& m = memory();
  store_row<float>(dtype, m.stored_half, 0, 1, unknown(kTileKeys * kMostDims), m.stored);
  memory();
}

#endif

constexpr double tile_flops(int rows, int dim) { return 2.0 * kTileKeys * rows * dim; }
constexpr double kScores = double{kTileKeys} * Wide::kRows;
constexpr double kTile = double{kTileKeys} * kMostDims;
[[maybe_unused]] constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
[[maybe_unused]] constexpr DType kFp16 = DType::kFloat16;

constexpr MicroKernel kMicroKernels[] = {
    {"scores/d64", tile_flops(Wide::kRows, 64), 0, scores<64>},
    {"scores/d128", tile_flops(Wide::kRows, 128), 0, scores<128>},
    {"output/d64", tile_flops(Wide::kRows, 64), 0, output<64>},
    {"output/d128", tile_flops(Wide::kRows, 128), 0, output<128>},
    {"key_gradient/d64", tile_flops(Wide::kRows, 64), 0, key_gradient<64>},
    {"key_gradient/d128", tile_flops(Wide::kRows, 128), 0, key_gradient<128>},
#if !defined(FUSED_ATTENTION_ISA_AVX512_BF16)
    {"narrow_scores/d128", tile_flops(Narrow::kRows, 128), 0, narrow_scores<128>},
    {"narrow_output/d128", tile_flops(Narrow::kRows, 128), 0, narrow_output<128>},
#endif
    {"softmax", 0, kScores, softmax},
    {"pack_by_key/bf16/d64", 0, kTile / 2, pack<kBf16, 64, true>},
    {"pack_by_dim/bf16/d64", 0, kTile / 2, pack<kBf16, 64, false>},
    {"transpose_in/d64", 0, 64.0 * Wide::kRows, transpose_in<64>},
    {"transpose_out/d64", 0, 64.0 * Wide::kRows, transpose_out<64>},
#if !defined(FUSED_ATTENTION_ISA_AVX512_BF16)
    {"exp", 0, kScores, exponential},
    {"pack_by_key/fp32/d64", 0, kTile / 2, pack<kFp32, 64, true>},
    {"pack_by_key/fp32/d128", 0, kTile, pack<kFp32, 128, true>},
    {"pack_by_key/fp16/d64", 0, kTile / 2, pack<kFp16, 64, true>},
    {"pack_by_dim/fp32/d64", 0, kTile / 2, pack<kFp32, 64, false>},
    {"pack_by_dim/fp32/d128", 0, kTile, pack<kFp32, 128, false>},
    {"pack_by_dim/fp16/d64", 0, kTile / 2, pack<kFp16, 64, false>},
    {"widen/bf16", 0, kTile, widen<kBf16>},
    {"widen/fp16", 0, kTile, widen<kFp16>},
    {"narrow/bf16", 0, kTile, narrow<kBf16>},
    {"narrow/fp16", 0, kTile, narrow<kFp16>},
#endif
};

FUSED_ATTENTION_END_ISA_NAMESPACE

namespace fused_attention::cpu::FUSED_ATTENTION_ISA_NAMESPACE {

MicroKernels micro_kernels() {
  return {FUSED_ATTENTION_VECTOR_BYTES, Wide::kPaired,
          sizeof kMicroKernels / sizeof kMicroKernels[0], kMicroKernels};
}

}  // namespace fused_attention::cpu::FUSED_ATTENTION_ISA_NAMESPACE
