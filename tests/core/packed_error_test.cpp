// SPDX-License-Identifier: BSD-3-Clause
// Errors that are packed and unpacked, as in another process.
#include "lockstep/core/packed_error.h"

#include <typeinfo>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

template <class Type>
Type unpacked(const std::exception& error) {
  try {
    std::rethrow_exception(unpack_error(pack_error(error)));
  } catch (const Type& other) {
    EXPECT_EQ(typeid(other), typeid(Type));
    EXPECT_STREQ(other.what(), error.what());
    return other;
  }
}

TEST(PackedError, KeepsTypeTextAndParts) {
  const ErrorDetails details{.cause = "it failed",
                             .remedy = "try again",
                             .peer = 3,
                             .contexts = {{.component = "Trainer", .operation = "epoch 1"},
                                          {.component = "gloo",
                                           .operation = "all_reduce",
                                           .call = 42,
                                           .caller = "accuracy()",
                                           .rank = 1,
                                           .size = 4}}};
  unpacked<Error>(Error(details));
  unpacked<UsageError>(UsageError(details));
  unpacked<BackendError>(BackendError(details));
  unpacked<CheckpointError>(CheckpointError(details));
  EXPECT_EQ(unpacked<TimeoutError>(TimeoutError(details)).rank(), 3);
  EXPECT_EQ(unpacked<PeerLost>(PeerLost(details)).how(), PeerLost::How::failed);
  EXPECT_EQ(unpacked<PeerLost>(PeerLost(details, PeerLost::How::left)).rank(), 3);
  EXPECT_EQ(unpacked<PeerLost>(PeerLost(details, PeerLost::How::left)).how(), PeerLost::How::left);
}

TEST(PackedError, AnExceptionOfAnotherLibraryBecomesABackendError) {
  unpacked<BackendError>(std::runtime_error("no space left"));
}

TEST(PackedError, RefusesOtherBytes) {
  EXPECT_THROW(unpack_error("other bytes"), BackendError);
}

}  // namespace
}  // namespace lockstep
