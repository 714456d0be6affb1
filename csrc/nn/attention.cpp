#include <fused_attention/attention.h>
#include <fused_attention/nn/attention.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>

#include <ostream>

namespace fused_attention::nn {

using torch::Tensor;

AttentionOptions::AttentionOptions(std::int64_t embed_dim, std::int64_t num_heads)
    : embed_dim_(embed_dim), num_heads_(num_heads) {}

Tensor rotate(const Tensor& tensor, double theta, std::int64_t start) {
  TORCH_CHECK(tensor.dim() >= 3 && tensor.size(-1) % 2 == 0,
              "fused_attention::nn::rotate: expected a tensor (..., S, H, D) with D even, but got "
              "shape ",
              tensor.sizes());
  const auto dim = tensor.size(-1);
  const auto options =
      tensor.options().dtype(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const Tensor channels = at::arange(0, dim, 2, options);
  const Tensor positions = at::arange(tensor.size(-3), options) + start;
  const Tensor frequencies = at::pow(theta, -channels / static_cast<double>(dim));
  const Tensor angles = at::outer(positions, frequencies).unsqueeze(1);
  const Tensor cos = angles.cos().to(tensor.scalar_type());
  const Tensor sin = angles.sin().to(tensor.scalar_type());
  const auto halves = tensor.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

AttentionImpl::AttentionImpl(const AttentionOptions& options_) : options(options_) {
  // Calls reset() of this class: a constructor does not dispatch further down.
  reset();
}

void AttentionImpl::reset() {
  const auto heads = options.num_heads();
  TORCH_CHECK(
      options.embed_dim() >= 1 && heads >= 1 && num_kv_heads() >= 1 && heads % num_kv_heads() == 0,
      "fused_attention::nn::Attention: expected positive embed_dim and num_heads and "
      "num_kv_heads dividing num_heads, but got ",
      options.embed_dim(), ", ", heads, " and ", num_kv_heads());
  TORCH_CHECK(
      options.head_dim().has_value() || options.embed_dim() % heads == 0,
      "fused_attention::nn::Attention: expected num_heads to divide embed_dim when head_dim "
      "is not given, but got ",
      heads, " and ", options.embed_dim());
  TORCH_CHECK(head_dim() >= 1 && (!options.rope() || head_dim() % 2 == 0),
              "fused_attention::nn::Attention: expected a positive head_dim, even with rope, but "
              "got ",
              head_dim());
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias()));
  };
  q_proj = register_module("q_proj", linear(options.embed_dim(), heads * head_dim()));
  k_proj = register_module("k_proj", linear(options.embed_dim(), num_kv_heads() * head_dim()));
  v_proj = register_module("v_proj", linear(options.embed_dim(), num_kv_heads() * head_dim()));
  o_proj = register_module("o_proj", linear(heads * head_dim(), options.embed_dim()));
}

void AttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fused_attention::nn::Attention(embed_dim=" << options.embed_dim()
         << ", num_heads=" << options.num_heads() << ", num_kv_heads=" << num_kv_heads()
         << ", head_dim=" << head_dim() << std::boolalpha << ", causal=" << options.causal()
         << ", rope=" << options.rope() << ")";
}

Tensor AttentionImpl::forward(const Tensor& x, const std::optional<Tensor>& attn_mask) {
  Tensor query = q_proj->forward(x).unflatten(-1, {options.num_heads(), head_dim()});
  Tensor key = k_proj->forward(x).unflatten(-1, {num_kv_heads(), head_dim()});
  const Tensor value = v_proj->forward(x).unflatten(-1, {num_kv_heads(), head_dim()});
  if (options.rope()) {
    query = rotate(query, options.rope_theta());
    key = rotate(key, options.rope_theta());
  }
  const Tensor output = attention(
      query.transpose(-3, -2), key.transpose(-3, -2), value.transpose(-3, -2),
      ::fused_attention::AttentionOptions().attn_mask(attn_mask).is_causal(options.causal()));
  return o_proj->forward(output.transpose(-3, -2).flatten(-2));
}

}  // namespace fused_attention::nn
