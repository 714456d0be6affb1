#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdint>
#include <cstdlib>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define FUSED_ATTENTION_EMULATOR_ASAN 1
#else
#define FUSED_ATTENTION_EMULATOR_ASAN 0
#endif

namespace fused_attention::emulator {
namespace {

namespace context = boost::context::detail;

constexpr std::size_t kStackBytes = 128 << 10;

/// Stacks of one OS thread, kept from launch to launch. The lowest page of each is unmapped.
class Stacks {
 public:
  ~Stacks() {
    for (void* stack : stacks_) munmap(stack, kStackBytes);
  }
  char* get(std::size_t index) {
    while (stacks_.size() <= index) {
      void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
      if (stack == MAP_FAILED) std::abort();
      mprotect(stack, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
      stacks_.push_back(stack);
    }
    return static_cast<char*>(stacks_[index]);
  }

 private:
  std::vector<void*> stacks_;
};

thread_local Stacks stacks;

void before_switch([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
                   [[maybe_unused]] std::size_t size) {
#if FUSED_ATTENTION_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
}

void after_switch([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from_bottom,
                  [[maybe_unused]] std::size_t* from_size) {
#if FUSED_ATTENTION_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, from_bottom, from_size);
#endif
}

}  // namespace

struct FiberEntry {
  /// What travels with a jump.
  struct Jump {
    Fiber* from;
    Fiber* to;
  };

  static void arrive(context::transfer_t transfer) {
    const Jump* jump = static_cast<const Jump*>(transfer.data);
    Fiber& from = *jump->from;
    Fiber& to = *jump->to;
    from.context_ = transfer.fctx;
    // Also tells the host fiber, which did not make its stack, where that is.
    after_switch(to.fake_stack_, &from.bottom_, &from.size_);
    to.fake_stack_ = nullptr;
  }

  static void enter(context::transfer_t transfer) {
    Fiber& self = *static_cast<const Jump*>(transfer.data)->to;
    arrive(transfer);
    self.main_();
    std::abort();
  }

  static void jump(Fiber& from, Fiber& to, void** fake_stack) {
    Jump jump{&from, &to};
    before_switch(fake_stack, to.bottom_, to.size_);
    arrive(context::jump_fcontext(to.context_, &jump));
  }
};

void Fiber::start(int index, Main main) {
  char* stack = stacks.get(static_cast<std::size_t>(index));
  // Tops of equal alignment would share cache sets: the same variable of all threads at once.
  char* top = stack + kStackBytes - index % 61 * 64;
#if FUSED_ATTENTION_EMULATOR_ASAN
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  __asan_unpoison_memory_region(stack + page, kStackBytes - page);
#endif
  bottom_ = stack;
  size_ = static_cast<std::size_t>(top - stack);
  main_ = main;
  fake_stack_ = nullptr;
  context_ = context::make_fcontext(top, size_, &FiberEntry::enter);
}

void Fiber::switch_to(Fiber& from, Fiber& to) { FiberEntry::jump(from, to, &from.fake_stack_); }

void Fiber::leave(Fiber& from, Fiber& to) {
  FiberEntry::jump(from, to, nullptr);
  std::abort();
}

Fiber& Fiber::host() {
  static thread_local Fiber fiber;
  return fiber;
}

}  // namespace fused_attention::emulator
