// The detectors of global memory, each against a small kernel that does the thing, and against its
// repair.
#include <gtest/gtest.h>

#include "emulator/detector_test.h"

namespace fused_attention::cuda {
namespace {

TEST_F(DetectorTest, GlobalReadPastTheAllowedElementsIsRecorded) {
  expect_only(run([&] {
                const float x = load_global<float>(in() + 449 + thread_index());
                store_global(out() + thread_index(), x);
              }),
              Fault::kGlobalRange);
}

TEST_F(DetectorTest, GlobalAccessOutsideEveryAllocationIsRecordedAndNotDone) {
  expect_only(run([&] { store_global(out() + 1024 + thread_index(), 1.0F); }), Fault::kGlobalRange);
}

TEST_F(DetectorTest, WriteToAnInputIsRecorded) {
  const GlobalPtr<float> read_only(input.data());
  expect_only(run([&] { store_global(read_only + thread_index(), 1.0F); }), Fault::kGlobalRange);
}

TEST_F(DetectorTest, TwoWritesOfOneOutputElementAreRecorded) {
  expect_only(run([&] { store_global(out() + thread_index() / 2, 1.0F); }), Fault::kGlobalRace);
}

/// Two blocks: the later one on this machine reads or writes word 0, which the other one writes or
/// reads.
class BlockRaceTest : public DetectorTest {
 protected:
  BlockRaceTest() { memory.allow(output.data(), 512 * 4, Access::kRead); }

  template <class Block>
  void in_block(int index, const Block& block) {
    if (block_index_x() == index && thread_index() == 0) block();
  }
  template <class First, class Second>
  void expect_race(const First& first, const Second& second) {
    const auto launch = [&](const auto& kernel) {
      return Machine().run({.grid_x = 2, .threads = 32, .shared_bytes = 16}, memory, kernel);
    };
    expect_only(launch([&] {
                  in_block(0, first);
                  in_block(1, second);
                }),
                Fault::kGlobalRace);
    // A launch of its own waits for the one before it.
    EXPECT_TRUE(launch([&] { in_block(0, first); }).clean());
    EXPECT_TRUE(launch([&] { in_block(1, second); }).clean());
  }
};

TEST_F(BlockRaceTest, ReadOfWhatAnotherBlockWritesIsRecorded) {
  expect_race([&] { store_global(out(), 1.0F); },
              [&] { store_global(out() + 1, load_global<float>(read())); });
}

TEST_F(BlockRaceTest, WriteOfWhatAnotherBlockWritesIsRecorded) {
  expect_race([&] { store_global(out(), 1.0F); }, [&] { store_global(out(), 2.0F); });
}

TEST_F(BlockRaceTest, WriteOfWhatAnotherBlockReadsIsRecorded) {
  expect_race([&] { store_global(out() + 1, load_global<float>(read())); },
              [&] { store_global(out(), 1.0F); });
}

TEST_F(BlockRaceTest, CopyOfWhatAnotherBlockWritesIsRecorded) {
  expect_race([&] { store_global(out() + 3, 1.0F); },
              [&] {
                const SharedPtr words = shared_region(0, 16, "words");
                cp_async_16(words, read(), 16);
                cp_async_commit();
                cp_async_wait<0>();
              });
}

}  // namespace
}  // namespace fused_attention::cuda
