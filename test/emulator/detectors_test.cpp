// Every detector of the emulator against a small kernel that does the thing, and against its
// repair.
#include "emulator/detector_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace fused_attention::cuda {
namespace {

/// Each thread writes its word and reads that of the thread `distance` further on.
template <class Barrier>
auto exchange(int distance, GlobalPtr<float> to, const Barrier& barrier) {
  return [=] {
    const SharedPtr words = shared_region(0, 64 * 4, "words");
    const int t = thread_index();
    store_shared(words + t * 4, static_cast<float>(t));
    barrier();
    store_global(to + t, load_shared<float>(words + (t + distance) % 64 * 4));
  };
}

TEST_F(DetectorTest, BlockBarrierOrdersSharedMemory) {
  const Report report = run(exchange(33, out(), [] { block_sync(); }));
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(output[40], 9);
}

TEST_F(DetectorTest, MissingBlockBarrierIsARace) {
  const Report report = run(exchange(33, out(), [] {}));
  EXPECT_GT(report.count(Fault::kSharedRace), 0) << report.text();
}

TEST_F(DetectorTest, WarpBarrierDoesNotOrderWarps) {
  const Report report = run(exchange(32, out(), [] { warp_sync(); }));
  EXPECT_GT(report.count(Fault::kSharedRace), 0) << report.text();
}

TEST_F(DetectorTest, MissingWarpBarrierIsARaceInsideAWarp) {
  const auto kernel = [&](bool synchronise) {
    return [=, this] {
      const SharedPtr words = shared_region(0, 64 * 4, "words");
      const int t = thread_index();
      store_shared(words + t * 4, 1.0F);
      if (synchronise) warp_sync();
      store_global(out() + t, load_shared<float>(words + (t ^ 1) * 4));
    };
  };
  EXPECT_TRUE(run(kernel(true)).clean());
  const Report report = run(kernel(false));
  EXPECT_GT(report.count(Fault::kSharedRace), 0) << report.text();
}

TEST_F(DetectorTest, WriteAfterReadWithoutBarrierIsARaceForEveryReader) {
  // Thread 0 reads last and writes: the reads of the others count as well.
  const auto kernel = [&](bool synchronise) {
    return [=, this] {
      const SharedPtr words = shared_region(0, 64 * 4, "words");
      const int t = thread_index();
      store_shared(words + t * 4, 1.0F);
      block_sync();
      float sum = load_shared<float>(words);
      sum = shuffle_xor(sum, 1) + load_shared<float>(words);
      if (synchronise) block_sync();
      if (t == 0) store_shared(words, sum);
      store_global(out() + t, sum);
    };
  };
  EXPECT_TRUE(run(kernel(true)).clean());
  expect_only(run(kernel(false)), Fault::kSharedRace);
}

TEST_F(DetectorTest, MatrixLoadOfOwnStoresNeedsAWarpBarrier) {
  const auto kernel = [&](bool synchronise) {
    return [=] {
      const SharedPtr rows = shared_region(0, 1024, "rows");
      const SharedPtr own = rows + thread_index() * 16;
      store_shared(own, Words4{});
      if (synchronise) warp_sync();
      Fragment fragment;
      ldmatrix_x4(fragment, own);
    };
  };
  EXPECT_TRUE(run(kernel(true)).clean());
  expect_only(run(kernel(false)), Fault::kSharedRace);
}

/// Copies 16 bytes per thread in two stages and reads the first.
template <class Wait>
auto two_stages(GlobalPtr<const float> from, GlobalPtr<float> to, const Wait& wait) {
  return [=] {
    const SharedPtr stages = shared_region(0, 2048, "stages");
    const int t = thread_index();
    cp_async_16(stages + t * 16, from + t * 4, 16);
    cp_async_commit();
    cp_async_16(stages + 1024 + t * 16, from + 256 + t * 4, 16);
    cp_async_commit();
    wait();
    block_sync();
    const auto four = load_shared<Pack<float, 4>>(stages + (t ^ 32) * 16);
    store_global(to + t * 4, four);
  };
}

TEST_F(DetectorTest, WaitForTheOlderGroupMakesItReadable) {
  const Report report = run(two_stages(in(), out(), [] { cp_async_wait<1>(); }));
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(output[0], 128);
}

TEST_F(DetectorTest, CopyReadWithoutWaitIsPoisonAndRecorded) {
  expect_only(run(two_stages(in(), out(), [] {})), Fault::kReadBeforeWait);
  EXPECT_TRUE(std::isnan(output[0]));
}

TEST_F(DetectorTest, WaitThatLeavesTooManyGroupsInFlightIsRecorded) {
  expect_only(run(two_stages(in(), out(), [] { cp_async_wait<2>(); })), Fault::kReadBeforeWait);
}

TEST_F(DetectorTest, UncommittedCopyIsNotWaitedFor) {
  expect_only(run([&] {
                const SharedPtr words = shared_region(0, 1024, "words");
                const int t = thread_index();
                cp_async_16(words + t * 16, in() + t * 4, 16);
                cp_async_wait<0>();
                store_global(out() + t, load_shared<float>(words + t * 16));
              }),
              Fault::kReadBeforeWait);
}

TEST_F(DetectorTest, WaitWithoutBarrierDoesNotPublishTheCopyToOthers) {
  expect_only(run([&] {
                const SharedPtr words = shared_region(0, 1024, "words");
                const int t = thread_index();
                cp_async_16(words + t * 16, in() + t * 4, 16);
                cp_async_commit();
                cp_async_wait<0>();
                shuffle_xor(0.0F, 1);
                const float other = load_shared<float>(words + (t ^ 1) * 16);
                store_global(out() + t, other);
              }),
              Fault::kSharedRace);
}

TEST_F(DetectorTest, StoreOverACopyInFlightIsRecorded) {
  expect_only(run([&] {
                const SharedPtr own = shared_region(0, 1024, "words") + thread_index() * 16;
                cp_async_16(own, in() + thread_index() * 4, 16);
                store_shared(own, 0.0F);
              }),
              Fault::kWriteOverCopy);
}

TEST_F(DetectorTest, PartialCopyClearsTheRest) {
  const Report report = run([&] {
    const SharedPtr words = shared_region(0, 1024, "words");
    const int t = thread_index();
    cp_async_16(words + t * 16, in() + t * 4, 4 * (t % 5));
    cp_async_commit();
    cp_async_wait<0>();
    store_global(out() + t * 4, load_shared<Pack<float, 4>>(words + t * 16));
  });
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(output[2 * 4 + 1], 9);
  EXPECT_EQ(output[2 * 4 + 2], 0);
}

TEST_F(DetectorTest, ReadOfSharedMemoryThatNobodyWroteIsRecorded) {
  expect_only(run([&] {
                const SharedPtr words = shared_region(0, 1024, "words");
                store_global(out() + thread_index(), load_shared<float>(words));
              }),
              Fault::kUninitialised);
}

TEST_F(DetectorTest, SharedPointerThatLeavesItsRegionIsRecorded) {
  expect_only(run([&] {
                const SharedPtr first = shared_region(0, 64 * 4, "first");
                shared_region(64 * 4, 64 * 4, "second");
                store_shared(first + (thread_index() + 1) * 4, 0.0F);
              }),
              Fault::kSharedRange);
}

TEST_F(DetectorTest, RegionBeyondTheLaunchsSharedMemoryIsRecorded) {
  expect_only(run([&] { shared_region(4096, 4, "beyond"); }), Fault::kSharedRange);
}

TEST_F(DetectorTest, MisalignedAccessesAreRecorded) {
  expect_only(run([&] { store_global(out() + 64 + thread_index() * 4 + 2, Pack<float, 4>{}); }),
              Fault::kMisaligned);
  expect_only(run([&] {
                const SharedPtr words = shared_region(0, 2048, "words");
                store_shared(words + thread_index() * 16 + 4, Words2{});
              }),
              Fault::kMisaligned);
  expect_only(run([&] {
                const SharedPtr words = shared_region(0, 2048, "words");
                cp_async_16(words + thread_index() * 16, in() + thread_index() * 4 + 1, 16);
              }),
              Fault::kMisaligned);
}

TEST_F(DetectorTest, ShuffleInADivergentBranchIsDivergence) {
  expect_only(run([&] {
                if (thread_index() != 7) shuffle_xor(1.0F, 1);
              }),
              Fault::kDivergence);
}

TEST_F(DetectorTest, CollectivesAtDifferentPlacesAreDivergence) {
  expect_only(run([&] {
                if (thread_index() % 2 == 0) {
                  warp_any(true);
                } else {
                  warp_any(true);
                }
              }),
              Fault::kDivergence);
}

TEST_F(DetectorTest, WarpThatIsABarrierShortIsDivergenceWithItsMask) {
  const Report report = run([&] {
    block_sync();
    if (thread_index() < 32) block_sync();
  });
  expect_only(report, Fault::kDivergence);
  EXPECT_NE(report.text().find("warp 1 lanes ffffffff done"), std::string::npos) << report.text();
}

TEST_F(DetectorTest, BlockBarriersAtDifferentPlacesAreDivergence) {
  expect_only(run([&] {
                if (thread_index() < 32) {
                  block_sync();
                } else {
                  block_sync();
                }
              }),
              Fault::kDivergence);
}

TEST_F(DetectorTest, LoopThatNeverEndsIsCut) {
  expect_only(run([&] {
                while (warp_any(true)) {
                }
              }),
              Fault::kDivergence);
}

TEST_F(DetectorTest, BankConflictsAreCountedForEverySite) {
  const auto column = [&](int stride) {
    return run([&, stride] {
      const SharedPtr words = shared_region(0, 4096, "words");
      store_shared(words + thread_index() * stride, 0.0F);
    });
  };
  EXPECT_EQ(column(4).bank_conflicts(), 0);
  const Report strided = column(64);  // 32 lanes on 2 banks, 2 warps
  ASSERT_EQ(strided.traffic.size(), 1U);
  EXPECT_EQ(strided.traffic[0].wavefronts, 32);
  EXPECT_EQ(strided.traffic[0].ideal, 2);
}

TEST_F(DetectorTest, MatrixRowsInOneBankGroupConflict) {
  const auto rows = [&](bool swizzle) {
    return run(
        [=] {
          const SharedPtr tile = shared_region(0, 32 * 128, "tile");
          const int row = thread_index();
          for (int chunk = 0; chunk < 8; ++chunk) {
            store_shared(tile + row * 128 + (chunk ^ (row % 8)) * 16, Words4{});
          }
          warp_sync();
          Fragment fragment;
          ldmatrix_x4(fragment, tile + row * 128 + (swizzle ? row % 8 * 16 : 0));
        },
        32);
  };
  EXPECT_EQ(rows(true).bank_conflicts(), 0);
  EXPECT_EQ(rows(false).bank_conflicts(), 4 * 7);
}

TEST_F(DetectorTest, RandomOrderGivesTheSameResult) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    const Report report = run(exchange(17, out(), [] { block_sync(); }), 64, seed);
    EXPECT_TRUE(report.clean()) << report.text();
    for (int t = 0; t < 64; ++t) EXPECT_EQ(output[static_cast<std::size_t>(t)], (t + 17) % 64);
  }
}

}  // namespace
}  // namespace fused_attention::cuda
