// Forward passes whose keys are cut into chunks, because the rows alone are too few.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/key_split.h"
#include "emulator/kernel_call.h"
#include "emulator/rounding_bounds.h"

namespace fused_attention::test {
namespace {

constexpr int kMultiprocessors = 16;

int chunks_of(const Call& call) {
  return cuda::forward_chunks(call.forward.problem, kMultiprocessors);
}

emulator::Report run_split(Call& call, std::uint64_t seed = 0) {
  EXPECT_GT(chunks_of(call), 1);
  emulator::Report report = run_forward(call, seed, kMultiprocessors);
  EXPECT_TRUE(report.clean()) << report.text();
  return report;
}

class SplitForwardTest : public testing::TestWithParam<Case> {};

TEST_P(SplitForwardTest, MatchesTheFormulaWithoutFaultsOrBankConflicts) {
  Call call(GetParam());
  const emulator::Report report = run_split(call);
  EXPECT_EQ(loop_conflicts(report), 0) << report.text();
  expect_forward(call, call.expected());
}

std::vector<Case> split_cases() {
  std::vector<Case> list;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const auto add = [&](Case c) {
      c.dtype = dtype;
      c.name.insert(0, name_of(dtype).append("_"));
      list.push_back(c);
    };
    add({.name = "one_row", .sizes = {1, 4, 2, 1, 700, 64, 64}});
    add({.name = "gqa", .sizes = {2, 8, 2, 3, 555, 128, 128}, .causal = true, .offset = 552});
    add({.name = "window",
         .sizes = {1, 2, 1, 5, 1500, 40, 24},
         .causal = true,
         .offset = 900,
         .left = 600});
    add({.name = "few_keys_seen", .sizes = {1, 2, 1, 20, 1100, 64, 64}, .causal = true});
    add({.name = "rows_that_see_nothing",
         .sizes = {1, 1, 1, 9, 700, 64, 64},
         .causal = true,
         .offset = -4});
    add({.name = "d576_512", .sizes = {1, 4, 1, 1, 520, 576, 512}});
    add({.name = "bool_mask", .sizes = {1, 4, 2, 7, 600, 64, 64}, .mask = MaskKind::kBool});
    add({.name = "float_mask_strided",
         .sizes = {1, 2, 1, 6, 530, 72, 200},
         .mask = MaskKind::kFloatWithHidden,
         .strided = true});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, SplitForwardTest, testing::ValuesIn(split_cases()),
                         [](const auto& info) { return info.param.name; });

class SplitForwardContractTest : public testing::TestWithParam<DType> {
 protected:
  static Call call_of(Case c) {
    c.dtype = GetParam();
    c.sizes = {1, 2, 1, 4, 600, 64, 64};
    return Call(c);
  }
};

TEST_P(SplitForwardContractTest, NonFiniteValueReachesOnlyTheRowsThatSeeIt) {
  for (const double poison : {std::nan(""), kInf}) {
    const Case c{.name = "seen", .causal = true, .offset = 550};
    Call clean = call_of(c);
    Call poisoned = call_of(c);
    poisoned.v.set(0, 0, 552, 3, poison);
    poisoned.v.set(0, 0, 580, 4, poison);
    run_split(clean);
    run_split(poisoned);
    for (std::int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isfinite(poisoned.out.get(0, 1, i, 3)), i < 2) << i;
      EXPECT_EQ(poisoned.out.get(0, 1, i, 4), clean.out.get(0, 1, i, 4)) << i;
    }
  }
}

TEST_P(SplitForwardContractTest, NanAmongVisibleScoresMakesTheRowNan) {
  Call call = call_of({.name = "nan", .causal = true, .offset = 550});
  call.k.set(0, 0, 552, 7, std::nan(""));
  run_split(call);
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::isnan(call.out.get(0, 1, i, 0)), i >= 2) << i;
    EXPECT_EQ(std::isnan(call.lse_at(static_cast<std::size_t>(4 + i))), i >= 2) << i;
  }
}

TEST_P(SplitForwardContractTest, MasksOfHugeFiniteValuesHideNothing) {
  Call even = call_of({.name = "lowest"});
  even.forward.problem.scale = 0;
  const Expected want = even.expected();
  const Bounds bounds = rounding_bounds(even, want);
  Call call = call_of({.name = "lowest", .mask = MaskKind::kFloat, .mask_dtype = DType::kFloat64});
  call.mask->fill([&](auto...) { return -0x1.fffffffffffffp1023; });
  run_split(call);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(call.out.get(0, 0, static_cast<std::int64_t>(i), 9), want.output[i][9],
                bounds.output[i][9]);
  }
}

TEST_P(SplitForwardContractTest, ResultDoesNotDependOnTheOrderOfThreads) {
  Call first = call_of({.name = "order"});
  Call second = call_of({.name = "order"});
  run_split(first);
  run_split(second, 77);
  EXPECT_EQ(first.out.memory, second.out.memory);
  EXPECT_EQ(first.lse, second.lse);
}

INSTANTIATE_TEST_SUITE_P(Types, SplitForwardContractTest,
                         testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32,
                                         DType::kFloat64),
                         [](const auto& info) { return name_of(info.param); });

int chunks(core::Sizes sizes, int multiprocessors, core::Band band = {-1 << 20, 1 << 20}) {
  core::Problem problem;
  problem.sizes = sizes;
  problem.band = band;
  return cuda::forward_chunks(problem, multiprocessors);
}

TEST(ForwardChunksTest, ManyRowsAreNotSplit) {
  EXPECT_EQ(chunks({1, 8, 8, 65, 1 << 16, 128, 128}, 132), 1);
  EXPECT_EQ(chunks({9, 64, 8, 1, 1 << 16, 128, 128}, 132), 1);
}

TEST(ForwardChunksTest, FewRowsFillTheDevice) {
  EXPECT_EQ(chunks({1, 32, 8, 1, 1 << 16, 128, 128}, 132), 17);
  EXPECT_EQ(chunks({1, 32, 8, 1, 1 << 16, 128, 128}, 108), 14);
}

TEST(ForwardChunksTest, ChunksAreLongEnoughForTheirMerge) {
  EXPECT_EQ(chunks({1, 8, 8, 1, 1024, 128, 128}, 132), 4);
  EXPECT_EQ(chunks({1, 8, 8, 1, 511, 128, 128}, 132), 2);
  EXPECT_EQ(chunks({1, 8, 8, 1, 256, 128, 128}, 132), 1);
}

TEST(ForwardChunksTest, ChunksAreNoMoreThanTheirMergeHasRoomFor) {
  EXPECT_EQ(chunks({1, 1, 1, 1, 1 << 20, 64, 64}, 1024), cuda::kMergeTile.most_chunks);
}

TEST(ForwardChunksTest, OnlyKeysThatTheBandShowsCount) {
  EXPECT_EQ(chunks({1, 8, 8, 1, 1 << 16, 128, 128}, 132, {65280, 65535}), 1);
}

}  // namespace
}  // namespace fused_attention::test
