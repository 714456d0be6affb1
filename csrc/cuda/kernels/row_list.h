// The list of all query rows of a (b, key-value head) pair, position-major: core/schedule.h.
#pragma once

#include "../../core/mask.h"
#include "../../core/schedule.h"
#include "../arch/device.h"

namespace fused_attention::cuda {

struct ListPlace {
  std::int64_t position;
  std::int64_t head;  // query head
};

struct RowList {
  std::int64_t batch;
  std::int64_t first_head;  // query head 0 of the group
  std::int64_t group;
  std::int64_t count;

  FUSED_ATTENTION_DEVICE ListPlace place(std::int64_t row) const {
    if (group == 1) return {row, first_head};
    if (count <= 0x7FFFFFFF) {  // the short division is several times as fast
      const auto short_row = static_cast<std::uint32_t>(row);
      const auto short_group = static_cast<std::uint32_t>(group);
      const std::uint32_t position = short_row / short_group;
      return {position, first_head + (short_row - position * short_group)};
    }
    const std::int64_t position = row / group;
    return {position, first_head + (row - position * group)};
  }
};

template <class Operand>
FUSED_ATTENTION_DEVICE std::int64_t list_offset(const Operand& x, const RowList& list,
                                                std::int64_t row) {
  const ListPlace place = list.place(row);
  return list.batch * x.stride_b + place.head * x.stride_h + place.position * x.stride_s;
}

}  // namespace fused_attention::cuda
