#include "attention_check.h"

#include <cmath>
#include <sstream>
#include <string>

#include "core/mask.h"
#include "cuda/launch.h"

#define FUSED_ATTENTION_CHECK(condition, ...) \
  TORCH_CHECK(condition, "fused_attention::attention: ", __VA_ARGS__)
#define FUSED_ATTENTION_SYM_CHECK(condition, ...) \
  TORCH_SYM_CHECK(condition, "fused_attention::attention: ", __VA_ARGS__)

namespace fused_attention {
namespace {

using at::Tensor;
using c10::SymInt;

/// Times log2(e) it is still finite in fp32.
constexpr double kLargestFloatScale = 1e38;

std::string describe(const char* name, const Tensor& tensor) {
  std::ostringstream text;
  text << name << " of shape " << tensor.sym_sizes() << " (dtype "
       << c10::toString(tensor.scalar_type()) << ")";
  return text.str();
}

bool is_supported(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

c10::SymBool broadcasts_to(const SymInt& size, const SymInt& target) {
  return TORCH_GUARD_OR_FALSE(size.sym_eq(1)) ? c10::SymBool(true) : size.sym_eq(target);
}

void check_plain(const char* name, const Tensor& tensor) {
  FUSED_ATTENTION_CHECK(tensor.defined(), "expected ", name, " to be a tensor, but got none");
  FUSED_ATTENTION_CHECK(!tensor.is_nested(), "expected ", name,
                        " to be a dense strided tensor, but got a nested one");
  FUSED_ATTENTION_CHECK(!tensor.is_quantized(), "expected ", name,
                        " to be a dense strided tensor, but got a quantized one");
  FUSED_ATTENTION_CHECK(tensor.layout() == at::kStrided, "expected ", name,
                        " to be a dense strided tensor, but got layout ", tensor.layout());
}

void check_types(const ForwardTensors& t) {
  const auto dtype = t.query.scalar_type();
  FUSED_ATTENTION_CHECK(dtype == t.key.scalar_type() && dtype == t.value.scalar_type(),
                        "expected query, key, and value to have the same dtype, but got "
                        "query.dtype: ",
                        dtype, " key.dtype: ", t.key.scalar_type(),
                        " and value.dtype: ", t.value.scalar_type(), " instead");
  FUSED_ATTENTION_CHECK(is_supported(dtype),
                        "expected query, key, and value to be float32, float64, bfloat16 or "
                        "float16, but got ",
                        describe("query", t.query));
  FUSED_ATTENTION_CHECK(
      t.query.device() == t.key.device() && t.query.device() == t.value.device(),
      "expected query, key, and value to have the same device type, but got query.device: ",
      t.query.device(), " key.device: ", t.key.device(), " and value.device: ", t.value.device(),
      " instead");
}

void check_heads(const SymInt& heads_q, const SymInt& heads_kv) {
  // Asked first, because the remainder by zero is no number.
  const bool no_kv_heads = TORCH_GUARD_OR_FALSE(heads_kv.sym_eq(0));
  FUSED_ATTENTION_SYM_CHECK(no_kv_heads ? heads_q.sym_eq(0) : (heads_q % heads_kv).sym_eq(0),
                            "expected the number of query heads to be a multiple of the number of "
                            "key and value heads, but got Hq = ",
                            heads_q, " and Hkv = ", heads_kv);
}

void check_sizes(const ForwardTensors& t) {
  for (const auto& [name, tensor] :
       {std::pair{"query", &t.query}, std::pair{"key", &t.key}, std::pair{"value", &t.value}}) {
    FUSED_ATTENTION_CHECK(tensor->dim() == 4, "expected ", name,
                          " to be 4-D (B, H, S, D), but got ", describe(name, *tensor));
  }
  const auto q = t.query.sym_sizes();
  const auto k = t.key.sym_sizes();
  const auto v = t.value.sym_sizes();
  FUSED_ATTENTION_SYM_CHECK(q[3].sym_eq(k[3]),
                            "expected query and key to have the same head dim D, but got ",
                            describe("query", t.query), " and ", describe("key", t.key));
  FUSED_ATTENTION_SYM_CHECK(q[3].sym_ge(1), "expected a head dim D of at least 1, but got ",
                            describe("query", t.query));
  FUSED_ATTENTION_SYM_CHECK(v[3].sym_ge(1), "expected a head dim Dv of at least 1, but got ",
                            describe("value", t.value));
  FUSED_ATTENTION_SYM_CHECK(k[2].sym_eq(v[2]),
                            "expected key and value to have the same length Sk, but got ",
                            describe("key", t.key), " and ", describe("value", t.value));
  FUSED_ATTENTION_SYM_CHECK(k[1].sym_eq(v[1]),
                            "expected key and value to have the same number of heads Hkv, but got ",
                            describe("key", t.key), " and ", describe("value", t.value));
  check_heads(q[1], k[1]);
  FUSED_ATTENTION_SYM_CHECK(broadcasts_to(k[0], q[0]),
                            "expected key to have the batch size of query, or 1, but got ",
                            describe("query", t.query), " and ", describe("key", t.key));
  FUSED_ATTENTION_SYM_CHECK(broadcasts_to(v[0], q[0]),
                            "expected value to have the batch size of query, or 1, but got ",
                            describe("query", t.query), " and ", describe("value", t.value));
}

void check_mask(const ForwardTensors& t) {
  if (!t.attn_mask.has_value()) {
    return;
  }
  const Tensor& mask = *t.attn_mask;
  FUSED_ATTENTION_CHECK(mask.scalar_type() == at::kBool || is_supported(mask.scalar_type()),
                        "expected attn_mask to be bool, float32, float64, bfloat16 or float16, but "
                        "got ",
                        describe("attn_mask", mask));
  FUSED_ATTENTION_CHECK(mask.device() == t.query.device(), "expected attn_mask on query's device, ",
                        t.query.device(), ", but got attn_mask on ", mask.device());
  const std::array<SymInt, 4> target = {t.query.sym_size(0), t.query.sym_size(1),
                                        t.query.sym_size(2), t.key.sym_size(2)};
  const char* const rule =
      "expected attn_mask to broadcast to (B, Hq, Sq, Sk), aligned from the right, ";
  FUSED_ATTENTION_CHECK(mask.dim() <= 4, rule, "but got ", describe("attn_mask", mask));
  const char* const hint =
      mask.dim() == 3
          ? ". A 3-D mask is (Hq, Sq, Sk): use attn_mask.unsqueeze(1) for one of (B, Sq, Sk)"
          : "";
  const std::int64_t missing = 4 - mask.dim();
  for (std::int64_t dim = 0; dim < mask.dim(); ++dim) {
    const SymInt size = mask.sym_size(dim);
    FUSED_ATTENTION_SYM_CHECK(broadcasts_to(size, target[dim + missing]), rule, "which is ",
                              c10::SymIntArrayRef(target), " here, but got ",
                              describe("attn_mask", mask), hint);
  }
}

void check_scale(const std::optional<double>& scale, c10::ScalarType dtype) {
  if (!scale.has_value()) {
    return;
  }
  FUSED_ATTENTION_CHECK(std::isfinite(*scale), "expected scale to be finite, but got ", *scale);
  FUSED_ATTENTION_CHECK(
      std::fabs(*scale) <= kLargestFloatScale || accumulation_type(dtype) == at::kDouble,
      "expected scale to be of a magnitude of at most ", kLargestFloatScale,
      ", as it is applied in float32, but got ", *scale);
}

/// Dimensions before the last three broadcast to those of query, aligned from the right.
void check_leading(const char* name, const Tensor& tensor, const Tensor& query) {
  const std::int64_t missing = query.dim() - tensor.dim();
  for (std::int64_t dim = 0; dim < tensor.dim() - 3; ++dim) {
    const SymInt size = tensor.sym_size(dim);
    FUSED_ATTENTION_SYM_CHECK(broadcasts_to(size, query.sym_size(dim + missing)), "expected ", name,
                              " to have the leading dimensions of query, or 1, but got ",
                              describe(name, tensor), " for ", describe("query", query));
  }
}

void check_options(const CallOptions& options) {
  FUSED_ATTENTION_CHECK(
      options.dropout_p >= 0.0 && options.dropout_p <= 1.0,
      "expected the dropout probability dropout_p to be between 0 and 1, but got ",
      options.dropout_p);
  FUSED_ATTENTION_CHECK(options.window_size[0] >= -1 && options.window_size[1] >= -1,
                        "expected the entries of window_size to be at least -1 (no limit), but got "
                        "(",
                        options.window_size[0], ", ", options.window_size[1], ")");
  FUSED_ATTENTION_CHECK(options.dropout_p == 0.0, "dropout_p > 0 is not supported yet, got ",
                        options.dropout_p);
  FUSED_ATTENTION_CHECK(options.softcap == 0.0, "softcap is not supported yet, got ",
                        options.softcap);
  FUSED_ATTENTION_CHECK(!options.sinks.has_value(), "sinks is not supported yet");
  FUSED_ATTENTION_CHECK(!options.alibi_slopes.has_value(), "alibi_slopes is not supported yet");
  FUSED_ATTENTION_CHECK(!options.seqused_k.has_value(), "seqused_k is not supported yet");
  FUSED_ATTENTION_CHECK(!options.rng_state.has_value(),
                        "rng_state is not supported yet, as dropout is not");
}

/// `tensor` has the `dtype`, the device of `query` and the sizes `expected`.
void check_companion(const char* name, const Tensor& tensor, c10::SymIntArrayRef expected,
                     c10::ScalarType dtype, const Tensor& query) {
  FUSED_ATTENTION_CHECK(
      tensor.dim() == static_cast<std::int64_t>(expected.size()) && tensor.scalar_type() == dtype,
      "expected ", name, " of shape ", expected, " (dtype ", c10::toString(dtype), "), but got ",
      describe(name, tensor));
  for (std::size_t dim = 0; dim < expected.size(); ++dim) {
    FUSED_ATTENTION_SYM_CHECK(tensor.sym_size(static_cast<std::int64_t>(dim)).sym_eq(expected[dim]),
                              "expected ", name, " of shape ", expected, ", but got ",
                              describe(name, tensor));
  }
  FUSED_ATTENTION_CHECK(tensor.device() == query.device(), "expected ", name,
                        " on query's device, ", query.device(), ", but got it on ",
                        tensor.device());
}

core::DType to_core(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return core::DType::kFloat32;
    case at::kDouble:
      return core::DType::kFloat64;
    case at::kBFloat16:
      return core::DType::kBFloat16;
    case at::kHalf:
      return core::DType::kFloat16;
    default:
      TORCH_INTERNAL_ASSERT(dtype == at::kBool);
      return core::DType::kBool;
  }
}

core::DenseMask make_mask(const std::optional<Tensor>& attn_mask) {
  if (!attn_mask.has_value()) {
    return {};
  }
  const Tensor& mask = *attn_mask;
  std::array<std::int64_t, 4> strides = {0, 0, 0, 0};
  const std::int64_t missing = 4 - mask.dim();
  for (std::int64_t dim = 0; dim < mask.dim(); ++dim) {
    strides[dim + missing] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
  }
  return {mask.const_data_ptr(),
          to_core(mask.scalar_type()),
          strides[0],
          strides[1],
          strides[2],
          strides[3]};
}

}  // namespace

std::array<std::int64_t, 2> to_window(c10::IntArrayRef window_size) {
  FUSED_ATTENTION_CHECK(window_size.size() == 2,
                        "expected window_size to be two integers (left, right), but got ",
                        window_size);
  return {window_size[0], window_size[1]};
}

c10::ScalarType accumulation_type(c10::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

void check_dense(const ForwardTensors& t) {
  check_plain("query", t.query);
  check_plain("key", t.key);
  check_plain("value", t.value);
  if (t.attn_mask.has_value()) {
    check_plain("attn_mask", *t.attn_mask);
  }
}

void check_dense(const BackwardTensors& t) {
  check_dense(t.inputs);
  check_plain("grad_output", t.grad_output);
  check_plain("output", t.output);
  check_plain("logsumexp", t.logsumexp);
  check_plain("rng_state", t.rng_state);
  if (t.grad_logsumexp.has_value()) {
    check_plain("grad_logsumexp", *t.grad_logsumexp);
  }
}

void check_foldable(const ForwardTensors& t) {
  for (const auto& [name, tensor] :
       {std::pair{"query", &t.query}, std::pair{"key", &t.key}, std::pair{"value", &t.value}}) {
    FUSED_ATTENTION_CHECK(tensor->dim() >= 2, "expected ", name,
                          " to be at least 2-D (S, D), but got ", describe(name, *tensor));
    FUSED_ATTENTION_CHECK(tensor->dim() == t.query.dim(),
                          "expected query, key, and value to have the same number of dimensions, "
                          "but got ",
                          describe("query", t.query), " and ", describe(name, *tensor));
    check_leading(name, *tensor, t.query);
  }
  if (t.attn_mask.has_value()) {
    FUSED_ATTENTION_CHECK(t.attn_mask->dim() <= t.query.dim(),
                          "expected attn_mask to broadcast to (B, Hq, Sq, Sk), aligned from the "
                          "right, but got ",
                          describe("attn_mask", *t.attn_mask), " for ", describe("query", t.query));
    check_leading("attn_mask", *t.attn_mask, t.query);
  }
}

void check_forward(const ForwardTensors& t, const CallOptions& options) {
  check_dense(t);
  check_types(t);
  check_sizes(t);
  check_mask(t);
  check_scale(options.scale, t.query.scalar_type());
  check_options(options);
}

void check_backward(const BackwardTensors& t, const GradInputMask& wanted,
                    const CallOptions& options) {
  check_dense(t);
  check_forward(t.inputs, options);
  const Tensor& query = t.inputs.query;
  const auto dtype = query.scalar_type();
  const auto wide = accumulation_type(dtype);
  const std::array<SymInt, 4> rows = {query.sym_size(0), query.sym_size(1), query.sym_size(2),
                                      t.inputs.value.sym_size(3)};
  const c10::SymIntArrayRef row_sizes(rows);
  check_companion("grad_output", t.grad_output, row_sizes, dtype, query);
  check_companion("output", t.output, row_sizes, dtype, query);
  check_companion("logsumexp", t.logsumexp, row_sizes.slice(0, 3), wide, query);
  if (t.grad_logsumexp.has_value()) {
    check_companion("grad_logsumexp", *t.grad_logsumexp, row_sizes.slice(0, 3), wide, query);
  }
  const std::array<SymInt, 1> no_state = {0};
  check_companion("rng_state", t.rng_state, no_state, at::kLong, query);
  FUSED_ATTENTION_CHECK(!wanted[3] && !wanted[4] && !wanted[5],
                        "gradients to attn_mask, sinks and alibi_slopes are not supported yet, but "
                        "grad_input_mask asks for one");
}

void check_cuda_limits(const ForwardTensors& t, bool with_gradient) {
  const auto dtype = t.query.scalar_type();
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    const SymInt largest(cuda::kLargestHeadDim);
    FUSED_ATTENTION_SYM_CHECK(t.query.sym_size(3).sym_le(largest),
                              "expected a head dim D of at most ", largest,
                              " in half precision on CUDA, but got ", describe("query", t.query));
    FUSED_ATTENTION_SYM_CHECK(
        with_gradient ? t.value.sym_size(3).sym_le(largest) : c10::SymBool(true),
        "expected a head dim Dv of at most ", largest,
        " in half precision on CUDA where a gradient is needed, but got ",
        describe("value", t.value), ". Without gradients, under torch.no_grad(), it may be larger");
  }
  const SymInt longest(cuda::kLongestSequence);
  for (const auto& [name, length] :
       {std::pair{"Sq", t.query.sym_size(2)}, std::pair{"Sk", t.key.sym_size(2)},
        std::pair{"the number of query heads", t.query.sym_size(1)},
        std::pair{"D", t.query.sym_size(3)}, std::pair{"Dv", t.value.sym_size(3)}}) {
    FUSED_ATTENTION_SYM_CHECK(length.sym_le(longest), "expected ", name, " of at most ", longest,
                              " on CUDA, but got ", length);
  }
}

core::ConstOperand to_const_operand(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2),
          tensor.stride(3)};
}

core::Operand to_operand(const Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2),
          tensor.stride(3)};
}

core::Problem make_problem(const ForwardTensors& t, const CallOptions& options) {
  const core::Sizes sizes{.batch = t.query.size(0),
                          .heads_q = t.query.size(1),
                          .heads_kv = t.key.size(1),
                          .seq_q = t.query.size(2),
                          .seq_k = t.key.size(2),
                          .dim_qk = t.query.size(3),
                          .dim_v = t.value.size(3)};
  core::Problem problem{
      .sizes = sizes,
      .dtype = to_core(t.query.scalar_type()),
      .scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes.dim_qk))),
      .band =
          core::make_band(options.is_causal, options.diagonal_offset.expect_int(),
                          options.window_size[0], options.window_size[1], sizes.seq_q, sizes.seq_k),
      .mask = make_mask(t.attn_mask),
      .query = to_const_operand(t.query),
      .key = to_const_operand(t.key),
      .value = to_const_operand(t.value)};
  for (auto* operand : {&problem.key, &problem.value}) {
    const Tensor& tensor = operand == &problem.key ? t.key : t.value;
    if (tensor.size(0) == 1) {
      operand->stride_b = 0;
    }
  }
  return problem;
}

}  // namespace fused_attention
