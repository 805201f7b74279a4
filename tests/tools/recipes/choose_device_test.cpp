// SPDX-License-Identifier: BSD-3-Clause
// The device of a rank, from --device.
#include "tools/recipes/choose_device.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ChooseDevice, ReadsWhatIsGiven) {
  EXPECT_EQ(choose_device({}, 0, 4), std::nullopt);
  EXPECT_EQ(choose_device("cpu", 3, 0), at::Device(at::kCPU));
  EXPECT_EQ(choose_device("cuda", 2, 4), at::Device(at::kCUDA, 2));
  EXPECT_EQ(choose_device("cuda:1", 3, 4), at::Device(at::kCUDA, 1));
}

TEST(ChooseDevice, RefusesAGpuThatIsNotThere) {
  EXPECT_THAT(
      [] { choose_device("cuda", 0, 0); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("--device cuda"), HasSubstr("sees 0 GPUs"))));
  EXPECT_THAT(
      [] { choose_device("cuda", 1, 1); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("local rank 1"), HasSubstr("sees 1 GPU;"))));
  EXPECT_THROW(choose_device("cuda:4", 0, 4), UsageError);
}

TEST(ChooseDevice, RefusesOtherTexts) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    EXPECT_THAT([&] { choose_device(text, 0, 4); },
                ThrowsMessage<UsageError>(HasSubstr("there is no such device")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep
