// SPDX-License-Identifier: BSD-3-Clause
// A state that one rank gives to another, from memory to memory. train/rank_alignment_test has the
// ranks that choose the donor.
#include "lockstep/checkpoint/checkpoint_broadcast.h"

#include <memory>
#include <string>
#include <string_view>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "lockstep/checkpoint/checkpoint_snapshot.h"
#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;

// Rank 0 does by hand what share_state() does on a donor whose memory has changed since the state
// was hashed.
TEST(CheckpointBroadcast, AStateThatDoesNotArriveAsItWasHashedIsNotUsed) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const CheckpointContents contents{.module = net.ptr(), .optimizer = &optimizer};
    const CheckpointPosition position{.step = 7};
    if (group->rank() == 0) {
      const StoredCheckpoint stored = in_memory(contents, position, *make_self_group());
      all_gather_object(std::string_view("the hash of other values"), *group);
      broadcast_object(outline_of(stored), 0, *group);
      broadcast_tensors(stored, 0, *group);
      return;
    }
    const std::string before = state_sha256(*net, optimizer);
    EXPECT_THAT(message_of<CheckpointError>(
                    [&] { share_state(contents, position, /*donor=*/0, /*lacks=*/true, *group); }),
                HasSubstr("the state has not arrived from rank 0 as it was there"));
    EXPECT_EQ(state_sha256(*net, optimizer), before);
  });
}

}  // namespace
}  // namespace lockstep
