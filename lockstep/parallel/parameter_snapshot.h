// SPDX-License-Identifier: BSD-3-Clause
// A record of a parameter, which shows whether the parameter changes later. Autograd counts changes
// in place, but not those through data(), as torch::optim::SGD makes them. So the record has the
// first values, too.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct ParameterSnapshot {
  std::int64_t version = -1;              // autograd's count of changes; -1: no snapshot
  std::array<std::byte, 64> values = {};  // the first ones, in the memory of a CPU

  // Does not wait for a device.
  static ParameterSnapshot of(const at::Tensor& parameter) {
    ParameterSnapshot snapshot{
        .version = parameter.unsafeGetTensorImpl()->version_counter().current_version()};
    if (parameter.is_cpu() && parameter.numel() > 0 && parameter.is_non_overlapping_and_dense()) {
      std::memcpy(snapshot.values.data(), parameter.data_ptr(),
                  std::min(parameter.nbytes(), snapshot.values.size()));
    }
    return snapshot;
  }

  bool operator==(const ParameterSnapshot&) const = default;
};

}  // namespace lockstep
