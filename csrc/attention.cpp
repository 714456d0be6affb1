// Schemas, the composite operators that fold leading dimensions, and the C++ functions that call
// the dispatcher.
#include <ATen/core/Tensor.h>
#include <fused_attention/attention.h>
#include <fused_attention/cpu.h>
#include <fused_attention/version.h>
#include <torch/library.h>
#include <torch/version.h>

#include <string>
#include <vector>

#include "attention_check.h"
#include "attention_op.h"
#include "cpu/isa.h"
#include "registration.h"

namespace fused_attention {
namespace {

using at::Tensor;
using c10::SymInt;
using SymSizes = c10::SmallVector<SymInt, 8>;

using CompositeResult = std::tuple<Tensor, Tensor>;
using ForwardSignature = ForwardResult(const Tensor&, const Tensor&, const Tensor&, OptionalTensor,
                                       double, bool, std::optional<double>, SymInt,
                                       c10::IntArrayRef, double, OptionalTensor, OptionalTensor,
                                       OptionalTensor, OptionalTensor);
using BackwardSignature = BackwardResult(const Tensor&, OptionalTensor, const Tensor&,
                                         const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, OptionalTensor, double, bool, GradInputMask,
                                         std::optional<double>, SymInt, c10::IntArrayRef, double,
                                         OptionalTensor, OptionalTensor, OptionalTensor);
template <class Result>
using CompositeSignature = Result(const Tensor&, const Tensor&, const Tensor&, OptionalTensor,
                                  double, bool, std::optional<double>, bool, SymInt,
                                  c10::IntArrayRef, double, OptionalTensor, OptionalTensor,
                                  OptionalTensor);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// (..., H, S, D) as (B, H, S, D); a view where the strides allow it. `leading` is what B stands
/// for.
Tensor fold(const Tensor& tensor, c10::SymIntArrayRef leading) {
  if (tensor.dim() == 4) {
    return tensor;
  }
  if (tensor.dim() < 4) {
    const auto with_heads = tensor.dim() == 2 ? tensor.unsqueeze(0) : tensor;
    return with_heads.unsqueeze(0);
  }
  const auto sizes = tensor.sym_sizes();
  const auto extra = sizes.size() - 3;
  // Broadcast along all leading dimensions stays broadcast; along some of them has to be written
  // out.
  bool is_broadcast = true;
  SymSizes expanded(leading.begin(), leading.end());
  SymInt batch = 1;
  for (const SymInt& size : leading) {
    batch *= size;
  }
  for (std::size_t dim = 0; dim < extra; ++dim) {
    is_broadcast = is_broadcast && TORCH_GUARD_OR_FALSE(sizes[dim].sym_eq(1));
  }
  expanded.append(sizes.end() - 3, sizes.end());
  SymSizes folded(sizes.end() - 3, sizes.end());
  folded.insert(folded.begin(), is_broadcast ? SymInt(1) : batch);
  return is_broadcast ? tensor.reshape_symint(folded)
                      : tensor.expand_symint(expanded).reshape_symint(folded);
}

/// The mask's last three dimensions are left as they are, also where they broadcast.
std::optional<Tensor> fold_mask(const std::optional<Tensor>& mask, c10::SymIntArrayRef leading) {
  if (!mask.has_value() || mask->dim() <= 3) {
    return mask;
  }
  Tensor aligned = *mask;
  while (aligned.dim() < static_cast<std::int64_t>(leading.size()) + 3) {
    aligned = aligned.unsqueeze(0);
  }
  return fold(aligned, leading);
}

CompositeResult fold_and_call(const ForwardTensors& t, const CallOptions& options) {
  const std::int64_t rank = t.query.dim();
  const auto sizes = t.query.sym_sizes();
  const SymSizes leading(sizes.begin(), sizes.begin() + std::max<std::int64_t>(rank - 3, 0));
  const auto [output, logsumexp, rng_state] =
      call_attention_forward({fold(t.query, leading), fold(t.key, leading), fold(t.value, leading),
                              fold_mask(t.attn_mask, leading)},
                             options);
  if (rank < 4) {
    const auto unfold = [&](Tensor folded) {
      folded = folded.squeeze(0);
      return rank == 2 ? folded.squeeze(0) : folded;
    };
    return {unfold(output), unfold(logsumexp)};
  }
  SymSizes row_sizes(sizes.begin(), sizes.end() - 1);
  SymSizes output_sizes = row_sizes;
  output_sizes.push_back(output.sym_size(3));
  return {output.reshape_symint(output_sizes), logsumexp.reshape_symint(row_sizes)};
}

void check_gqa(const Tensor& query, const Tensor& key, bool enable_gqa) {
  if (!enable_gqa && query.dim() >= 3 && key.dim() >= 3) {
    TORCH_SYM_CHECK(
        query.sym_size(-3).sym_eq(key.sym_size(-3)),
        "fused_attention::attention: expected equal numbers of query and key heads with "
        "enable_gqa=False, but got Hq = ",
        query.sym_size(-3), " and Hkv = ", key.sym_size(-3));
  }
}

CompositeResult attention_with_lse_op(const Tensor& query, const Tensor& key, const Tensor& value,
                                      OptionalTensor attn_mask, double dropout_p, bool is_causal,
                                      std::optional<double> scale, bool enable_gqa,
                                      SymInt diagonal_offset, c10::IntArrayRef window_size,
                                      double softcap, OptionalTensor sinks,
                                      OptionalTensor alibi_slopes, OptionalTensor seqused_k) {
  const ForwardTensors tensors{query, key, value, attn_mask};
  const CallOptions options{dropout_p,
                            is_causal,
                            scale,
                            std::move(diagonal_offset),
                            to_window(window_size),
                            softcap,
                            sinks,
                            alibi_slopes,
                            seqused_k,
                            std::nullopt};
  check_dense(tensors);
  if (query.dim() == 4 && key.dim() == 4 && value.dim() == 4) {
    check_gqa(query, key, enable_gqa);
    auto [output, logsumexp, rng_state] = call_attention_forward(tensors, options);
    return {std::move(output), std::move(logsumexp)};
  }
  check_foldable(tensors);
  check_gqa(query, key, enable_gqa);
  return fold_and_call(tensors, options);
}

Tensor attention_op(const Tensor& query, const Tensor& key, const Tensor& value,
                    OptionalTensor attn_mask, double dropout_p, bool is_causal,
                    std::optional<double> scale, bool enable_gqa, SymInt diagonal_offset,
                    c10::IntArrayRef window_size, double softcap, OptionalTensor sinks,
                    OptionalTensor alibi_slopes, OptionalTensor seqused_k) {
  return std::get<0>(attention_with_lse_op(query, key, value, attn_mask, dropout_p, is_causal,
                                           scale, enable_gqa, std::move(diagonal_offset),
                                           window_size, softcap, sinks, alibi_slopes, seqused_k));
}

std::vector<std::string> build_info() {
  const auto number = [](int part) { return std::to_string(part); };
  return {"version=" + number(FUSED_ATTENTION_VERSION_MAJOR) + "." +
              number(FUSED_ATTENTION_VERSION_MINOR) + "." + number(FUSED_ATTENTION_VERSION_PATCH),
          "torch=" TORCH_VERSION,
#ifdef FUSED_ATTENTION_WITH_CUDA
          "cuda=1"
#else
          "cuda=0"
#endif
  };
}

CallOptions to_call_options(const AttentionOptions& options) {
  return {.dropout_p = options.dropout_p(),
          .is_causal = options.is_causal(),
          .scale = options.scale(),
          .diagonal_offset = options.diagonal_offset(),
          .window_size = options.window_size()};
}

template <class Result>
Result call_composite(const char* name, const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options) {
  static const auto op = find_operator<CompositeSignature<Result>>(name);
  return op.call(query, key, value, options.attn_mask(), options.dropout_p(), options.is_causal(),
                 options.scale(), options.enable_gqa(), options.diagonal_offset(),
                 options.window_size(), 0.0, std::nullopt, std::nullopt, std::nullopt);
}

#define FUSED_ATTENTION_COMMON_ARGUMENTS                                       \
  "SymInt diagonal_offset=0, int[2] window_size=[-1, -1], float softcap=0.0, " \
  "Tensor? sinks=None, Tensor? alibi_slopes=None, Tensor? seqused_k=None"
#define FUSED_ATTENTION_FORWARD_ARGUMENTS                                                 \
  "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, " \
  "bool is_causal=False, *, float? scale=None, "

FUSED_ATTENTION_LIBRARY(m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("attention(" FUSED_ATTENTION_FORWARD_ARGUMENTS
        "bool enable_gqa=True, " FUSED_ATTENTION_COMMON_ARGUMENTS ") -> Tensor",
        tags);
  m.def("attention_with_lse(" FUSED_ATTENTION_FORWARD_ARGUMENTS
        "bool enable_gqa=True, " FUSED_ATTENTION_COMMON_ARGUMENTS
        ") -> (Tensor output, Tensor logsumexp)",
        tags);
  m.def("attention_forward(" FUSED_ATTENTION_FORWARD_ARGUMENTS FUSED_ATTENTION_COMMON_ARGUMENTS
        ", Tensor? rng_state=None) -> (Tensor output, Tensor logsumexp, Tensor rng_state_out)",
        tags);
  m.def(
      "attention_backward(Tensor grad_output, Tensor? grad_logsumexp, Tensor query, Tensor key, "
      "Tensor value, Tensor output, Tensor logsumexp, Tensor rng_state, Tensor? attn_mask, "
      "float dropout_p, bool is_causal, bool[6] grad_input_mask, *, float? "
      "scale=None, " FUSED_ATTENTION_COMMON_ARGUMENTS
      ") -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_mask, "
      "Tensor grad_sinks, Tensor grad_alibi_slopes)",
      tags);
  m.def("cpu_isas() -> str[]", tags);
  m.def("active_cpu_isa() -> str", tags);
  m.def("set_cpu_isa(str name) -> ()", tags);
  m.def("build_info() -> str[]", tags);
}

FUSED_ATTENTION_LIBRARY_IMPL(CompositeImplicitAutograd, m) {
  m.impl("attention", TORCH_FN(attention_op));
  m.impl("attention_with_lse", TORCH_FN(attention_with_lse_op));
}

// Without these, vmap would run the composites one example at a time, with a warning.
FUSED_ATTENTION_LIBRARY_IMPL(FuncTorchBatchedDecomposition, m) {
  m.impl("attention", TORCH_FN(attention_op));
  m.impl("attention_with_lse", TORCH_FN(attention_with_lse_op));
}

FUSED_ATTENTION_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("cpu_isas", TORCH_FN(cpu::supported_isas));
  m.impl("active_cpu_isa", TORCH_FN(cpu::active_isa));
  m.impl("set_cpu_isa", [](std::string name) { cpu::set_isa(name); });
  m.impl("build_info", TORCH_FN(build_info));
}

}  // namespace

ForwardResult call_attention_forward(const ForwardTensors& t, const CallOptions& o) {
  static const auto op = find_operator<ForwardSignature>("fused_attention::attention_forward");
  return op.call(t.query, t.key, t.value, t.attn_mask, o.dropout_p, o.is_causal, o.scale,
                 o.diagonal_offset, o.window_size, o.softcap, o.sinks, o.alibi_slopes, o.seqused_k,
                 o.rng_state);
}

BackwardResult call_attention_backward(const BackwardTensors& t, const GradInputMask& wanted,
                                       const CallOptions& o) {
  static const auto op = find_operator<BackwardSignature>("fused_attention::attention_backward");
  return op.call(t.grad_output, t.grad_logsumexp, t.inputs.query, t.inputs.key, t.inputs.value,
                 t.output, t.logsumexp, t.rng_state, t.inputs.attn_mask, o.dropout_p, o.is_causal,
                 wanted, o.scale, o.diagonal_offset, o.window_size, o.softcap, o.sinks,
                 o.alibi_slopes, o.seqused_k);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& options) {
  return call_composite<Tensor>("fused_attention::attention", query, key, value, options);
}

std::tuple<Tensor, Tensor> attention_with_lse(const Tensor& query, const Tensor& key,
                                              const Tensor& value,
                                              const AttentionOptions& options) {
  return call_composite<CompositeResult>("fused_attention::attention_with_lse", query, key, value,
                                         options);
}

std::tuple<Tensor, Tensor, Tensor> attention_forward(const Tensor& query, const Tensor& key,
                                                     const Tensor& value,
                                                     const AttentionOptions& options) {
  check_gqa(query, key, options.enable_gqa());
  return call_attention_forward({query, key, value, options.attn_mask()}, to_call_options(options));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_logsumexp, const Tensor& query,
    const Tensor& key, const Tensor& value, const Tensor& output, const Tensor& logsumexp,
    const Tensor& rng_state, std::array<bool, 6> grad_input_mask, const AttentionOptions& options) {
  check_gqa(query, key, options.enable_gqa());
  return call_attention_backward({grad_output,
                                  grad_logsumexp,
                                  output,
                                  logsumexp,
                                  rng_state,
                                  {query, key, value, options.attn_mask()}},
                                 grad_input_mask, to_call_options(options));
}

std::vector<std::string> cpu_isas() { return cpu::supported_isas(); }

std::string active_cpu_isa() { return cpu::active_isa(); }

void set_cpu_isa(const std::string& name) { cpu::set_isa(name); }

}  // namespace fused_attention
