// What an ISA offers: plans, and the work of one item.
//
// The driver (run.cpp) owns threads and memory; the kernels own everything between. Scratch and
// shared buffers come from the driver, uninitialised, aligned to 64 bytes.
#pragma once

#include <cstdint>

#include "../core/problem.h"
#include "../core/schedule.h"

namespace fused_attention::cpu {

/// Items: (b, kv head) x row block x chunk of keys.
struct ForwardPlan {
  core::RowSchedule rows;
  std::int64_t chunks = 1;         // of keys per row block
  std::int64_t chunk_tiles = 0;    // key tiles of a chunk
  std::int64_t items = 0;          // heads * blocks * chunks
  std::int64_t scratch_bytes = 0;  // per thread
  std::int64_t partial_bytes = 0;  // per (b, kv head) and row block, when chunks > 1
  int variant = 0;
};

/// Items: (b, kv head) x row block x chunk of keys. The blocks of one head add to the same
/// accumulators (dK and dV in the computing type), always in the order of their rows; where there
/// is only one, they hold a tile of keys at a time. The chunks of one block have a dQ each, summed
/// in the order of the keys. So results do not depend on who runs what.
struct BackwardPlan {
  core::RowSchedule rows;
  std::int64_t key_tiles = 0;
  std::int64_t chunks = 1;             // of keys per row block
  std::int64_t chunk_tiles = 0;        // key tiles of a chunk
  std::int64_t scratch_bytes = 0;      // per thread
  std::int64_t accumulator_bytes = 0;  // per (b, kv head); with one row block, per thread
  std::int64_t partial_bytes = 0;      // per (b, kv head) and row block, when chunks > 1
  int variant = 0;
};

struct BackwardItem {
  std::int64_t head = 0;
  std::int64_t block = 0;
  std::int64_t chunk = 0;
};

/// Where the blocks of a head running at the same time wait for each other: `finished[t]` counts
/// the blocks that have added to key tile t, zero at the start. Null when one thread runs them all.
struct TileOrder {
  std::int32_t* finished = nullptr;
};

struct BackwardMemory {
  void* scratch = nullptr;       // of the thread
  void* accumulators = nullptr;  // of the head, or of the thread
  void* partial = nullptr;       // of the head and row block; unused when chunks == 1
  TileOrder order = {};          // of the head
};

struct KernelTable {
  const char* name;
  /// `threads`: how many are going to share the items.
  ForwardPlan (*plan_forward)(const core::ForwardProblem&, std::int64_t threads);
  /// Item i: head i / (blocks * chunks), then row block from the last to the first, then chunk.
  /// `partial`: the buffer of the item's head and row block; unused when chunks == 1.
  void (*forward_item)(const core::ForwardProblem&, const ForwardPlan&, std::int64_t item,
                       void* scratch, void* partial);
  /// Merges the chunks of one row block, in their order, once all are there.
  void (*forward_merge)(const core::ForwardProblem&, const ForwardPlan&, std::int64_t head,
                        std::int64_t block, void* scratch, const void* partial);
  BackwardPlan (*plan_backward)(const core::BackwardProblem&, std::int64_t threads);
  /// The first block of a head zeroes the accumulators, the last one writes dK and dV.
  void (*backward_item)(const core::BackwardProblem&, const BackwardPlan&, BackwardItem,
                        const BackwardMemory&);
  /// Sums dQ over the chunks of one row block, in their order, once all are there.
  void (*backward_merge)(const core::BackwardProblem&, const BackwardPlan&, BackwardItem,
                         const BackwardMemory&);
};

/// The table that the next call uses (isa.h).
const KernelTable& active_table();

namespace generic {
const KernelTable& kernel_table();
}
namespace avx2 {
const KernelTable& kernel_table();
}
namespace avx512 {
const KernelTable& kernel_table();
}
namespace avx512_bf16 {
const KernelTable& kernel_table();
}

}  // namespace fused_attention::cpu
