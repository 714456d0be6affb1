#include "machine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace fused_attention::emulator {
namespace {

thread_local Machine* current_machine = nullptr;

// A correct block of the largest test needs a tenth of this; a loop that never ends is cut here.
constexpr std::int64_t kMostSteps = 20'000'000;

}  // namespace

Machine& Machine::current() { return *current_machine; }

Report Machine::run(const LaunchShape& shape, GlobalMemory& memory,
                    const std::function<void()>& kernel, std::uint64_t seed) {
  if (shape.threads % kWarpSize != 0 || shape.threads <= 0 || shape.threads > 1024) {
    throw std::logic_error("a block has whole warps, at most 32 of them");
  }
  recorder_.clear();
  shape_ = shape;
  memory_ = &memory;
  kernel_ = &kernel;
  is_random_ = seed != 0;
  random_.seed(seed);
  memory.begin_launch();
  Machine* const before = std::exchange(current_machine, this);
  for (block_y_ = 0; block_y_ < shape.grid_y; ++block_y_) {
    for (block_x_ = 0; block_x_ < shape.grid_x; ++block_x_) run_block();
  }
  current_machine = before;
  return recorder_.take_report();
}

void Machine::run_block() {
  shared_.begin_block(shape_.shared_bytes);
  const auto count = static_cast<std::size_t>(shape_.threads);
  threads_.resize(count);
  warps_.assign(count / kWarpSize, Warp());
  ready_.assign(count, nullptr);
  first_ready_ = ready_count_ = 0;
  block_epoch_ = 0;
  block_arrived_ = 0;
  block_condition_ = false;
  steps_ = 0;
  done_ = 0;
  for (std::size_t n = 0; n < count; ++n) {
    Thread& thread = threads_[n];
    thread.thread = static_cast<int>(n);
    thread.warp = &warps_[n / kWarpSize];
    thread.warp->lanes[n % kWarpSize] = &thread;
    thread.accesses.clear();
    thread.open_copies.clear();
    thread.groups.clear();
    thread.fiber.start(thread.thread, &Machine::thread_main);
    make_ready(thread);
  }
  running_ = next_ready();
  Fiber::switch_to(Fiber::host(), running_->fiber);
}

void Machine::thread_main() {
  Machine& machine = current();
  (*machine.kernel_)();
  Thread& self = *machine.running_;
  self.state = Thread::State::kDone;
  ++machine.done_;
  if (machine.done_ == machine.shape_.threads) {
    for (Warp& warp : machine.warps_) machine.count_accesses(warp);
    Fiber::leave(self.fiber, Fiber::host());
  }
  machine.switch_away(self, true);
}

void Machine::make_ready(Thread& thread) {
  thread.state = Thread::State::kReady;
  ready_[(first_ready_ + ready_count_++) % ready_.size()] = &thread;
}

Machine::Thread* Machine::next_ready() {
  if (ready_count_ == 0) return nullptr;
  if (is_random_) {
    std::swap(ready_[first_ready_],
              ready_[(first_ready_ + random_() % ready_count_) % ready_.size()]);
  }
  Thread* thread = ready_[first_ready_];
  first_ready_ = (first_ready_ + 1) % ready_.size();
  --ready_count_;
  return thread;
}

void Machine::switch_away(Thread& from, bool for_good) {
  Thread* const next = next_ready();
  if (next == nullptr) abandon_block(from.site, [&] { return who_waits_where(); });
  running_ = next;
  if (for_good) Fiber::leave(from.fiber, next->fiber);
  Fiber::switch_to(from.fiber, next->fiber);
}

void Machine::sleep(Thread::State state, const char* where, SiteId site) {
  Thread& self = *running_;
  self.state = state;
  self.waits_in = where;
  self.site = site;
  switch_away(self, false);
}

std::string Machine::who_waits_where() const {
  std::string text = "nobody can go on:";
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    std::vector<std::pair<std::string, std::uint32_t>> places;
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
      const Thread& thread = *warps_[w].lanes[lane];
      const std::string place =
          thread.state == Thread::State::kDone
              ? "done"
              : std::string(thread.waits_in) + " at " + recorder_.site(thread.site).text();
      auto found = std::find_if(places.begin(), places.end(),
                                [&](const auto& entry) { return entry.first == place; });
      if (found == places.end()) found = places.insert(places.end(), {place, 0});
      found->second |= 1U << lane;
    }
    for (const auto& [place, mask] : places) {
      char hex[16];
      std::snprintf(hex, sizeof hex, "%08x", mask);
      text += " warp " + std::to_string(w) + " lanes " + hex + " " + place + ";";
    }
  }
  return text;
}

bool Machine::meet_block(const char* name, bool condition, SiteId site) {
  if (block_arrived_ == 0) {
    block_site_ = site;
  } else if (block_site_ != site) {
    running_->waits_in = name;
    running_->site = site;
    abandon_block(site, [&] {
      return "threads are at the block barrier of " + recorder_.site(block_site_).text() +
             " meanwhile";
    });
  }
  if (++steps_ > kMostSteps)
    abandon_block(site, [] { return std::string("the block does not end"); });
  block_condition_ |= condition;
  if (++block_arrived_ < shape_.threads) {
    sleep(Thread::State::kInBlock, name, site);
    return block_result_;
  }
  for (Warp& warp : warps_) count_accesses(warp);
  ++block_epoch_;
  block_arrived_ = 0;
  block_result_ = std::exchange(block_condition_, false);
  for (Thread& thread : threads_) {
    if (&thread != running_) make_ready(thread);
  }
  return block_result_;
}

void Machine::meet_warp(const Collective& what, void* operand, SiteId site) {
  Thread& self = *running_;
  Warp& warp = *self.warp;
  if (warp.arrived == 0) {
    warp.what = &what;
    warp.site = site;
  } else if (warp.what != &what || warp.site != site) {
    abandon_block(site, [&] {
      return std::string(what.name) + ", while lanes of the warp are at " + warp.what->name +
             " of " + recorder_.site(warp.site).text();
    });
  }
  if (++steps_ > kMostSteps)
    abandon_block(site, [] { return std::string("the block does not end"); });
  self.operand = operand;
  if (++warp.arrived < kWarpSize) {
    sleep(Thread::State::kInWarp, what.name, site);
    return;
  }
  warp.arrived = 0;
  count_accesses(warp);
  std::array<void*, kWarpSize> operands;
  for (std::size_t lane = 0; lane < kWarpSize; ++lane) operands[lane] = warp.lanes[lane]->operand;
  what.execute(*this, operands.data());
  for (Thread* lane : warp.lanes) {
    if (lane != &self) make_ready(*lane);
  }
}

void Machine::end_warp_epoch() { ++running_->warp->epoch; }

}  // namespace fused_attention::emulator
