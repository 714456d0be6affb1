#include "run.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernel_table.h"

namespace fused_attention::cpu {
namespace {

/// Below this many floating-point operations a call runs on the calling thread: opening a parallel
/// region costs 5 to 8 microseconds.
constexpr double kSerialFlops = 0.4e6;

c10::DataPtr allocate(std::int64_t bytes) {
  return c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes));
}

/// Products of the forward pass without masks, as floating-point operations.
double forward_flops(const core::Sizes& sizes) {
  return 2.0 * static_cast<double>(sizes.batch * sizes.heads_q * sizes.seq_q) *
         static_cast<double>(sizes.seq_k) * static_cast<double>(sizes.dim_qk + sizes.dim_v);
}

/// Calls work(item, scratch) for every item, on `threads` of the pool's, each with scratch of its
/// own. Items are taken in order, so whoever waits for an earlier item waits for one that has
/// started.
template <class Work>
void for_each_item(std::int64_t items, std::int64_t scratch_bytes, int threads, const Work& work) {
  std::atomic<std::int64_t> next{0};
  const auto take_items = [&](std::int64_t, std::int64_t) {
    // Before an item is taken: if memory runs out here, nobody waits for an item that never ends.
    const c10::DataPtr scratch = allocate(scratch_bytes);
    for (std::int64_t item = next++; item < items; item = next++) work(item, scratch.get());
  };
  const std::int64_t takers = std::min<std::int64_t>(items, threads);
  if (takers <= 1) {
    take_items(0, 1);
  } else {
    at::parallel_for(0, takers, 1, take_items);
  }
}

}  // namespace

void forward(const core::ForwardProblem& call) {
  const KernelTable& kernels = active_table();
  const core::Sizes& sizes = call.problem.sizes;
  if (sizes.batch == 0 || sizes.heads_q == 0 || sizes.seq_q == 0) return;
  const int threads = forward_flops(sizes) < kSerialFlops ? 1 : at::get_num_threads();
  const ForwardPlan plan = kernels.plan_forward(call, threads);
  if (plan.chunks == 1) {
    for_each_item(plan.items, plan.scratch_bytes, threads, [&](std::int64_t item, void* scratch) {
      kernels.forward_item(call, plan, item, scratch, nullptr);
    });
    return;
  }
  // Who finishes the last chunk of a row block merges it.
  const std::int64_t pairs = plan.items / plan.chunks;
  const c10::DataPtr partials = allocate(pairs * plan.partial_bytes);
  std::vector<std::atomic<std::int64_t>> finished(static_cast<std::size_t>(pairs));
  for_each_item(plan.items, plan.scratch_bytes, threads, [&](std::int64_t item, void* scratch) {
    const std::int64_t pair = item / plan.chunks;
    void* partial = static_cast<char*>(partials.get()) + pair * plan.partial_bytes;
    kernels.forward_item(call, plan, item, scratch, partial);
    if (++finished[static_cast<std::size_t>(pair)] < plan.chunks) return;
    kernels.forward_merge(call, plan, pair / plan.rows.blocks,
                          plan.rows.blocks - 1 - pair % plan.rows.blocks, scratch, partial);
  });
}

void backward(const core::BackwardProblem& call) {
  const KernelTable& kernels = active_table();
  const core::Sizes& sizes = call.problem.sizes;
  if (sizes.batch == 0 || sizes.heads_kv == 0) return;
  const int threads = forward_flops(sizes) < kSerialFlops / 2.5 ? 1 : at::get_num_threads();
  const BackwardPlan plan = kernels.plan_backward(call, threads);
  const std::int64_t heads = plan.rows.heads;
  const std::int64_t blocks = std::max<std::int64_t>(plan.rows.blocks, 1);

  // Enough heads for all threads: a thread takes a whole head, with accumulators of its own.
  const bool whole_heads = threads == 1 || blocks == 1 || heads >= 4 * threads;
  if (whole_heads && plan.chunks == 1) {
    for_each_item(heads, plan.scratch_bytes + plan.accumulator_bytes, threads,
                  [&](std::int64_t head, void* scratch) {
                    void* accumulators = static_cast<char*>(scratch) + plan.scratch_bytes;
                    for (std::int64_t block = 0; block < blocks; ++block) {
                      kernels.backward_item(call, plan, {head, block, 0},
                                            {.scratch = scratch, .accumulators = accumulators});
                    }
                  });
    return;
  }
  // Few heads: threads share one, each with a block of rows, and follow each other over its key
  // tiles; or, with one block, each with a chunk of the keys. Who finishes the last chunk of a row
  // block merges it.
  const bool shared = blocks > 1;
  const std::int64_t own_bytes = shared ? 0 : plan.accumulator_bytes;
  const c10::DataPtr accumulators = allocate(shared ? heads * plan.accumulator_bytes : 0);
  const c10::DataPtr partials = allocate(heads * blocks * plan.partial_bytes);
  std::vector<std::int32_t> finished_blocks(static_cast<std::size_t>(heads * plan.key_tiles));
  std::vector<std::atomic<std::int64_t>> finished_chunks(static_cast<std::size_t>(heads * blocks));
  const std::int64_t items = heads * plan.chunks * blocks;
  const auto work = [&](std::int64_t item, void* scratch) {
    const std::int64_t head = item / (plan.chunks * blocks);
    const std::int64_t block = item % blocks;
    const std::int64_t pair = head * blocks + block;
    const BackwardMemory memory{
        .scratch = scratch,
        .accumulators = shared
                            ? static_cast<char*>(accumulators.get()) + head * plan.accumulator_bytes
                            : static_cast<char*>(scratch) + plan.scratch_bytes,
        .partial = static_cast<char*>(partials.get()) + pair * plan.partial_bytes,
        .order = {finished_blocks.data() + head * plan.key_tiles}};
    kernels.backward_item(call, plan, {head, block, item / blocks % plan.chunks}, memory);
    if (plan.chunks == 1) return;
    if (++finished_chunks[static_cast<std::size_t>(pair)] < plan.chunks) return;
    kernels.backward_merge(call, plan, {head, block, 0}, memory);
  };
  for_each_item(items, plan.scratch_bytes + own_bytes, threads, work);
}

}  // namespace fused_attention::cpu
