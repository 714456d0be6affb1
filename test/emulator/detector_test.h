// Small kernels that do what a detector of the emulator must find.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/arch/device.h"
#include "emulator/machine.h"

namespace fused_attention::cuda {

using emulator::Access;
using emulator::Fault;
using emulator::GlobalMemory;
using emulator::Machine;
using emulator::Report;

class DetectorTest : public testing::Test {
 protected:
  DetectorTest() : input(1024), output(1024, -1) {
    for (std::size_t n = 0; n < input.size(); ++n) input[n] = static_cast<float>(n);
    memory.add_allocation("input", input.data(), input.size() * 4);
    memory.add_allocation("output", output.data(), output.size() * 4);
    memory.allow(input.data(), 512 * 4, Access::kRead);
    memory.allow(output.data(), 512 * 4, Access::kWrite);
  }

  template <class Kernel>
  Report run(const Kernel& kernel, int threads = 64, std::uint64_t seed = 0) {
    return Machine().run({.threads = threads, .shared_bytes = 4096}, memory, kernel, seed);
  }
  /// Exactly this fault was found, in this file.
  static void expect_only(const Report& report, Fault fault) {
    EXPECT_GT(report.count(fault), 0) << report.text();
    for (const auto& finding : report.findings) {
      EXPECT_EQ(finding.fault, fault) << report.text();
      EXPECT_NE(finding.site.text().find("detectors_test.cpp"), std::string::npos) << report.text();
    }
  }

  std::vector<float> input;
  std::vector<float> output;
  GlobalMemory memory;
  GlobalPtr<const float> in() const { return GlobalPtr<const float>(input.data()); }
  GlobalPtr<const float> read() const { return GlobalPtr<const float>(output.data()); }
  GlobalPtr<float> out() { return GlobalPtr<float>(output.data()); }
};

}  // namespace fused_attention::cuda
