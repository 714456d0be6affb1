// The plain kernels of half precision on rows of 16-byte chunks that are not contiguous.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/backward_launch.h"
#include "emulator/kernel_call.h"

namespace fused_attention::test {
namespace {

class PlainRowsTest : public testing::TestWithParam<Case> {
 protected:
  static bool runs_plain_kernels(const Call& call) {
    constexpr int kElementBytes = 2;
    const core::Problem& problem = call.forward.problem;
    const bool in_chunks =
        cuda::is_in_chunks(call.forward.output, problem.sizes.dim_v, kElementBytes) &&
        cuda::is_in_chunks(call.backward, kElementBytes);
    return cuda::is_plain(problem, in_chunks, static_cast<float>(problem.scale));
  }
};

TEST_P(PlainRowsTest, MatchTheFormulaForwardAndBackward) {
  Call call(GetParam());
  ASSERT_TRUE(runs_plain_kernels(call));
  const Expected expected = call.expected();
  const emulator::Report forward = run_forward(call);
  EXPECT_TRUE(forward.clean()) << forward.text();
  EXPECT_EQ(loop_conflicts(forward), 0) << forward.text();
  expect_forward(call, expected);
  const emulator::Report backward = run_backward(call);
  EXPECT_TRUE(backward.clean()) << backward.text();
  EXPECT_EQ(loop_conflicts(backward), 0) << backward.text();
  expect_backward(call, expected);
}

/// One case for each tile of the forward kernels, which reach every tile of the backward ones.
std::vector<Case> plain_cases() {
  const std::pair<const char*, ChunkedRows> orders[] = {{"transposed", ChunkedRows::kTransposed},
                                                        {"spaced", ChunkedRows::kSpaced},
                                                        {"expanded", ChunkedRows::kExpanded}};
  std::vector<Case> list;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [order, rows] : orders) {
      const auto add = [&](core::Sizes sizes) {
        const std::string dims =
            std::to_string(sizes.dim_qk).append("_").append(std::to_string(sizes.dim_v));
        Case c{.name = name_of(dtype) + "_" + order + "_d" + dims};
        c.dtype = dtype;
        c.sizes = sizes;
        c.causal = true;
        c.offset = sizes.seq_k - sizes.seq_q;
        c.rows = rows;
        list.push_back(c);
      };
      add({2, 4, 2, 70, 100, 64, 64});
      add({2, 4, 2, 40, 70, 96, 96});
      add({2, 4, 2, 40, 70, 128, 128});
      add({2, 4, 2, 20, 70, 192, 128});
      add({2, 4, 2, 20, 40, 256, 256});
      add({2, 4, 2, 9, 40, 576, 512});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, PlainRowsTest, testing::ValuesIn(plain_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fused_attention::test
