// SPDX-License-Identifier: BSD-3-Clause
// libFuzzer's entry for the decoders of images; scripts/fuzz builds and runs it.
#include <cstdint>
#include <cstdlib>

#include "lockstep/data/image_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const at::Tensor image =
        lockstep::decode_image({reinterpret_cast<const std::byte*>(data), size}, "input");
    if (image.dim() != 3 || image.size(2) != 3) std::abort();
    (void)image.sum();  // reads every element
  } catch (const lockstep::DamagedImage&) {
  }
  return 0;
}
