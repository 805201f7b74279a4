// SPDX-License-Identifier: BSD-3-Clause
// Which tensors can be sent and received where they lie.
#include "lockstep/comm/remote/payload.h"

#include <array>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::remote {
namespace {

TEST(Payload, PartsOfOneTensorStayWhereTheyAre) {
  const at::Tensor whole = at::arange(12, at::kInt);
  const std::vector<at::Tensor> rows = whole.view({3, 4}).unbind();
  for (const at::Tensor& bytes : {joined(rows), bytes_in_place(rows)}) {
    EXPECT_EQ(bytes.data_ptr(), whole.data_ptr());
    EXPECT_EQ(bytes.numel(), 48);
  }
  const at::Tensor alone = joined(at::full({2, 5}, 7, at::kByte).unbind());
  EXPECT_TRUE((alone == 7).all().item<bool>()) << "it keeps the memory";
}

TEST(Payload, TensorsThatDoNotLieOneAfterTheOtherAreCopied) {
  const std::vector<at::Tensor> rows = at::arange(12, at::kInt).view({3, 4}).unbind();
  const at::Tensor other = at::arange(4, 8, at::kInt);
  for (const std::vector<at::Tensor>& tensors :
       {std::vector{rows[1], rows[0]}, std::vector{rows[0], rows[2]}, std::vector{rows[0], rows[0]},
        std::vector{rows[0], other}}) {
    EXPECT_FALSE(bytes_in_place(tensors).defined());
    EXPECT_TRUE(joined(tensors).equal(bytes_of(at::cat(tensors))));
  }
}

// The next allocation may end where the first begins, and belongs to someone else.
TEST(Payload, TensorsOfSeveralStoragesAreCopied) {
  std::array<std::uint8_t, 8> memory{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<at::Tensor> halves{at::from_blob(memory.data(), {4}, at::kByte),
                                       at::from_blob(memory.data() + 4, {4}, at::kByte)};
  EXPECT_FALSE(bytes_in_place(halves).defined());
  const at::Tensor bytes = joined(halves);
  EXPECT_NE(bytes.data_ptr(), memory.data());
  EXPECT_EQ(bytes[7].item<int>(), 8);
}

TEST(Payload, NothingIsNoBytes) {
  EXPECT_EQ(joined({}).numel(), 0);
  EXPECT_EQ(joined({at::empty({0})}).numel(), 0);
  EXPECT_EQ(joined({at::empty({0}), at::empty({0})}).numel(), 0);
}

}  // namespace
}  // namespace lockstep::remote
