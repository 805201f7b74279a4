// SPDX-License-Identifier: BSD-3-Clause
// stream_copy at every alignment and length.
#include "lockstep/tensor/kernels/stream_copy.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(StreamCopy, CopiesAnyLengthFromAndToAnyPlaceAndNothingElse) {
  constexpr std::size_t kLine = 64;
  constexpr unsigned char kUntouched = 0xee;
  std::vector<unsigned char> source(6 * kLine);
  std::iota(source.begin(), source.end(), static_cast<unsigned char>(0));
  for (const std::size_t from : {0, 1, 16}) {
    for (std::size_t to = 0; to < kLine; to += 3) {
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200, 256}) {
        std::vector<unsigned char> target(8 * kLine, kUntouched);
        std::vector<unsigned char> expected = target;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(kLine + to));
        stream_copy(target.data() + kLine + to, source.data() + from, bytes);
        finish_streaming();
        ASSERT_EQ(target, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
