// SPDX-License-Identifier: BSD-3-Clause
// libFuzzer's entry for fuzz_safetensors_index; scripts/fuzz builds and runs it.
#include <cstdint>

#include "checkpoint/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::testing::fuzz_safetensors_index({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
