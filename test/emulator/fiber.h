// Fibers: one per thread of a block, switched by Boost.Context's jump, annotated for
// AddressSanitizer.
#pragma once

#include <cstddef>
#include <vector>

namespace fused_attention::emulator {

class Fiber {
 public:
  using Main = void (*)();

  /// Prepares the fiber to run `main`, which never returns, on its stack.
  void start(int index, Main main);
  /// Leaves `from` and continues `to`; returns when somebody switches to `from` again.
  static void switch_to(Fiber& from, Fiber& to);
  /// Leaves `from` for good.
  [[noreturn]] static void leave(Fiber& from, Fiber& to);

  /// The calling OS thread itself.
  static Fiber& host();

 private:
  friend struct FiberEntry;
  void* context_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  Main main_ = nullptr;
};

}  // namespace fused_attention::emulator
