// Runs a thread block: one fiber for each thread, switched where threads wait for each other.
//
// A thread that arrives at a collective sleeps; the last one to arrive carries it out for all. When
// nobody can run and not everybody is done, threads wait in different places: that one check finds
// every divergence. A block stays on the OS thread that launched it, so several can run at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fiber.h"
#include "global_memory.h"
#include "recorder.h"
#include "shared_memory.h"

namespace fused_attention::emulator {

constexpr int kWarpSize = 32;

struct LaunchShape {
  std::int64_t grid_x = 1;
  std::int64_t grid_y = 1;
  int threads = kWarpSize;
  int shared_bytes = 0;
};

class Machine {
 public:
  /// What a warp does together: `execute` gets the 32 lanes' operands.
  struct Collective {
    const char* name;
    void (*execute)(Machine&, void* const* operands);
  };

  /// The machine of the launch that runs on this OS thread.
  static Machine& current();

  /// `seed` != 0 lets ready threads run in a random order.
  Report run(const LaunchShape& shape, GlobalMemory& memory, const std::function<void()>& kernel,
             std::uint64_t seed = 0);

  int thread() const { return running_->thread; }
  std::int64_t block_x() const { return block_x_; }
  std::int64_t block_y() const { return block_y_; }
  const LaunchShape& shape() const { return shape_; }
  SiteId id_of(const Site& site) { return recorder_.id_of(site); }

  /// Barrier of the block; true if the condition of any thread holds.
  bool meet_block(const char* name, bool condition, SiteId site);
  void meet_warp(const Collective& what, void* operand, SiteId site);
  /// For `execute` of warp_sync.
  void end_warp_epoch();

  std::uint16_t region(int offset, int bytes, const char* name, SiteId site);
  void load_shared(void* to, SharedAddress from, int bytes, SiteId site);
  void store_shared(SharedAddress to, const void* from, int bytes, SiteId site);
  /// One 16-byte row of a matrix for lane `lane` of the warp that executes a collective.
  void read_matrix_row(unsigned char* to, int lane, SharedAddress from, SiteId site);
  /// Eight rows are one phase of ldmatrix.
  void count_matrix(const SharedAddress* rows, SiteId site);

  void load_global(void* to, std::uintptr_t from, std::size_t bytes, SiteId site);
  void store_global(std::uintptr_t to, const void* from, std::size_t bytes, SiteId site);

  void copy_async(SharedAddress to, std::uintptr_t from, int bytes, SiteId site);
  void commit_copies();
  void wait_copies(int in_flight, SiteId site);

 private:
  struct Copy {
    std::uint32_t offset;
    std::array<unsigned char, 16> data;
  };
  struct PlainAccess {
    SiteId site;
    std::uint16_t bytes;
    std::uint32_t offset;
  };
  struct Warp;
  struct Thread {
    Fiber fiber;
    Warp* warp = nullptr;
    int thread = 0;
    enum class State { kReady, kInWarp, kInBlock, kDone } state = State::kReady;
    const char* waits_in = "";
    SiteId site = 0;
    void* operand = nullptr;
    std::vector<PlainAccess> accesses;
    std::vector<Copy> open_copies;
    std::vector<std::vector<Copy>> groups;
  };
  struct Warp {
    const Collective* what = nullptr;
    SiteId site = 0;
    int arrived = 0;
    std::uint32_t epoch = 0;
    std::array<Thread*, kWarpSize> lanes{};
  };

  void run_block();
  static void thread_main();
  Moment now(SiteId site) const {
    return {block_epoch_, running_->warp->epoch, static_cast<std::uint16_t>(running_->thread),
            site};
  }
  void make_ready(Thread& thread);
  /// Runs others until somebody makes the running thread ready.
  void sleep(Thread::State state, const char* where, SiteId site);
  Thread* next_ready();
  void switch_away(Thread& from, bool for_good);
  /// Records `describe()` and returns to `run_block`. The stacks of the threads are dropped with
  /// what lies on them: nothing there may own memory.
  template <class Describe>
  [[noreturn]] void abandon_block(SiteId site, const Describe& describe) {
    recorder_.record(Fault::kDivergence, site, describe);
    Fiber::leave(running_->fiber, Fiber::host());
  }
  std::string who_waits_where() const;
  void count_accesses(Warp& warp);
  void count_uniform_accesses(const Warp& warp);
  void count_divergent_accesses(const Warp& warp);
  void note_access(SiteId site, std::uint32_t offset, int bytes);

  Recorder recorder_;
  SharedMemory shared_{recorder_};
  GlobalMemory* memory_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  LaunchShape shape_;
  std::int64_t block_x_ = 0;
  std::int64_t block_y_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Thread* running_ = nullptr;
  std::vector<Thread*> ready_;  // a ring
  std::size_t first_ready_ = 0;
  std::size_t ready_count_ = 0;
  bool is_random_ = false;
  std::mt19937_64 random_;
  std::uint32_t block_epoch_ = 0;
  int block_arrived_ = 0;
  bool block_condition_ = false;
  bool block_result_ = false;
  SiteId block_site_ = 0;
  std::int64_t steps_ = 0;
  int done_ = 0;
};

}  // namespace fused_attention::emulator
