// core/: intervals of visible keys and schedules, against the definitions they stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/mask.h"
#include "core/online_softmax.h"
#include "core/schedule.h"

namespace fused_attention::test {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

/// DESIGN: causal j <= i + offset; window i + offset - left <= j <= i + offset + right, -1 = no
/// limit.
bool sees(bool causal, std::int64_t offset, std::int64_t left, std::int64_t right, std::int64_t i,
          std::int64_t j) {
  const auto diagonal = static_cast<__int128>(i) + offset;
  if (causal && j > diagonal) return false;
  if (left >= 0 && j < diagonal - left) return false;
  if (right >= 0 && j > diagonal + right) return false;
  return true;
}

TEST(BandTest, EqualsItsDefinitionForAnyOffsetAndWindow) {
  const std::int64_t offsets[] = {kMin, kMin + 1, -100, -7, -1, 0, 1, 3, 9, 100, kMax - 1, kMax};
  const std::int64_t windows[] = {-1, 0, 1, 4, 50, kMax - 1, kMax};
  const std::int64_t seq_q = 6;
  const std::int64_t seq_k = 9;
  for (const bool causal : {false, true}) {
    for (const std::int64_t offset : offsets) {
      for (const std::int64_t left : windows) {
        for (const std::int64_t right : windows) {
          const core::Band band = core::make_band(causal, offset, left, right, seq_q, seq_k);
          for (std::int64_t i = 0; i < seq_q; ++i) {
            const auto keys = core::visible_keys(band, i, seq_k);
            for (std::int64_t j = 0; j < seq_k; ++j) {
              ASSERT_EQ(j >= keys.begin && j < keys.end, sees(causal, offset, left, right, i, j))
                  << "causal " << causal << " offset " << offset << " window " << left << ' '
                  << right << " at " << i << ' ' << j;
            }
          }
        }
      }
    }
  }
}

TEST(BandTest, IntervalsOfRowRangesAreUnionAndIntersection) {
  const std::int64_t seq_k = 12;
  for (const auto& [lower, upper] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-20, 0}, {-2, 1}, {-30, 30}, {3, 5}, {-9, -4}}) {
    const core::Band band{lower, upper};
    for (std::int64_t first = 0; first < 8; ++first) {
      for (std::int64_t last = first; last < 8; ++last) {
        const auto any = core::keys_of_any_row(band, first, last, seq_k);
        const auto every = core::keys_of_every_row(band, first, last, seq_k);
        for (std::int64_t j = 0; j < seq_k; ++j) {
          bool all = true;
          for (std::int64_t i = first; i <= last; ++i) {
            const auto keys = core::visible_keys(band, i, seq_k);
            const bool seen = j >= keys.begin && j < keys.end;
            all &= seen;
            ASSERT_TRUE(!seen || (j >= any.begin && j < any.end));
          }
          ASSERT_EQ(j >= every.begin && j < every.end, all);
        }
      }
    }
  }
}

TEST(ScheduleTest, BlocksCoverEveryRowOnceInWholePanels) {
  const core::TileLimits limits{.panel_rows = 24, .panels = 16, .panel_floats = 1 << 17};
  for (const std::int64_t seq_q : {1, 7, 23, 24, 25, 400, 1000, 4097}) {
    for (const std::int64_t group : {1, 3, 8}) {
      for (const std::int64_t dims : {2, 128, 1088, 1 << 18}) {
        const core::Sizes sizes{2, 2 * group, 2, seq_q, 50, dims / 2, dims / 2};
        const auto schedule = core::schedule_rows(sizes, limits, dims);
        ASSERT_EQ(schedule.rows, group * seq_q);
        ASSERT_EQ(schedule.heads, 4);
        ASSERT_EQ(schedule.block_rows % limits.panel_rows, 0);
        ASSERT_LE(schedule.block_rows, limits.panels * limits.panel_rows);
        ASSERT_TRUE(schedule.block_rows * dims <= limits.panel_floats ||
                    schedule.block_rows == limits.panel_rows);
        std::int64_t next = 0;
        for (std::int64_t index = 0; index < schedule.blocks; ++index) {
          const auto block = core::row_block(schedule, sizes, 3, index);
          ASSERT_EQ(block.batch, 1);
          ASSERT_EQ(block.head_kv, 1);
          ASSERT_EQ(block.first, next);
          ASSERT_GT(block.count, 0);
          next += block.count;
        }
        ASSERT_EQ(next, schedule.rows);
      }
    }
  }
}

TEST(ScheduleTest, FewHeadsHaveSmallerBlocksButNeverBelowTheLeast) {
  const core::TileLimits limits{.panel_rows = 24,
                                .panels = 16,
                                .least_panels = 2,
                                .enough_items = 16,
                                .panel_floats = 1 << 20};
  const auto blocks = [&](std::int64_t heads, std::int64_t seq) {
    return core::schedule_rows({1, heads, heads, seq, seq, 64, 64}, limits, 128).blocks;
  };
  EXPECT_EQ(blocks(1, 24 * 64), 16);
  EXPECT_EQ(blocks(1, 24 * 10), 5);
  EXPECT_EQ(blocks(1, 24), 1);
  EXPECT_EQ(blocks(4, 24 * 64), 4);
  EXPECT_EQ(blocks(16, 24 * 16), 1);
}

TEST(ScheduleTest, KeysAreSplitOnlyWhenRowsAreFewAndKeysMany) {
  core::RowSchedule schedule;
  schedule.heads = 1;
  schedule.blocks = 1;
  EXPECT_EQ(core::key_chunks(schedule, 100000, 128, 16, 4), 16);
  EXPECT_EQ(core::key_chunks(schedule, 1024, 128, 16, 4), 2);
  EXPECT_EQ(core::key_chunks(schedule, 100, 128, 16, 4), 1);
  EXPECT_EQ(core::key_chunks(schedule, 0, 128, 16, 4), 1);
  schedule.heads = 16;
  EXPECT_EQ(core::key_chunks(schedule, 100000, 128, 16, 4), 1);
}

TEST(OnlineSoftmaxTest, RowThatSeesNothingHasNoOutputAndMinusInfinity) {
  EXPECT_EQ(core::logsumexp(-INFINITY, 0), -INFINITY);
  EXPECT_EQ(core::output_scale(0), 0);
  EXPECT_DOUBLE_EQ(core::logsumexp(3, 2), 3 + std::log(2.0));
  EXPECT_TRUE(std::isnan(core::logsumexp(1, NAN)));
  EXPECT_FALSE(core::logsumexp_is_coarse(-INFINITY));
  EXPECT_FALSE(core::logsumexp_is_coarse(NAN));
  EXPECT_TRUE(core::logsumexp_is_coarse(-1e30));
}

}  // namespace
}  // namespace fused_attention::test
