// Registration with the dispatcher that looks first: a second copy of the library in one process
// stays passive instead of aborting it, as TORCH_LIBRARY would.
#pragma once

#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

namespace fused_attention {

/// True when this copy of the library is the one that registers the operators. Decided once, before
/// this copy registers anything. Hidden, because two copies must not share the static.
__attribute__((visibility("hidden"))) inline bool owns_registration() noexcept {
  static const bool owns = [] {
    try {
      const bool taken = c10::Dispatcher::singleton()
                             .findSchema({"fused_attention::attention_forward", ""})
                             .has_value();
      if (taken) {
        TORCH_WARN(
            "fused_attention: another copy of the library is loaded already; this one stays "
            "passive.");
      }
      return !taken;
    } catch (...) {
      return false;
    }
  }();
  return owns;
}

/// One block of registrations, alive as long as the library is loaded. Files may be initialised in
/// any order: an implementation may come before its schema.
class __attribute__((visibility("hidden"))) Registration {
 public:
  Registration(torch::Library::Kind kind, std::optional<c10::DispatchKey> key,
               void (*fill)(torch::Library&), const char* file, std::uint32_t line) noexcept {
    if (!owns_registration()) {
      return;
    }
    try {
      library_ = std::make_unique<torch::Library>(kind, "fused_attention", key, file, line);
      fill(*library_);
    } catch (const std::exception& error) {
      TORCH_WARN("fused_attention: registration failed, operators may be missing: ", error.what());
    }
  }

 private:
  std::unique_ptr<torch::Library> library_;
};

}  // namespace fused_attention

/// As TORCH_LIBRARY_FRAGMENT: `FUSED_ATTENTION_LIBRARY(m) { m.def(...); }`, once per file.
#define FUSED_ATTENTION_LIBRARY(m)                                                          \
  static void fused_attention_define(torch::Library&);                                      \
  static const ::fused_attention::Registration fused_attention_definition(                  \
      torch::Library::FRAGMENT, std::nullopt, &fused_attention_define, __FILE__, __LINE__); \
  static void fused_attention_define(torch::Library& m)

/// As TORCH_LIBRARY_IMPL: `FUSED_ATTENTION_LIBRARY_IMPL(CPU, m) { m.impl(...); }`.
#define FUSED_ATTENTION_LIBRARY_IMPL(key, m)                                                   \
  static void fused_attention_implement_##key(torch::Library&);                                \
  static const ::fused_attention::Registration fused_attention_implementation_##key(           \
      torch::Library::IMPL, c10::DispatchKey::key, &fused_attention_implement_##key, __FILE__, \
      __LINE__);                                                                               \
  static void fused_attention_implement_##key(torch::Library& m)
