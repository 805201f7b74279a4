// SPDX-License-Identifier: BSD-3-Clause
// The full text of errors as a user reads them, one of each kind: a rank is named once, the news
// come before the remedy, and nothing is nested. docs/errors.md explains them.
#include <filesystem>
#include <future>
#include <limits>
#include <typeinfo>

#include "tests/messages/golden.h"
#include "tests/support/temporary_folder.h"
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/image_file.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using GroupPtr = std::shared_ptr<ProcessGroup>;

at::Tensor ones(std::int64_t elements = 4) {
  return at::ones({elements});
}

GroupState gloo_of_4() {
  Membership membership;
  membership.rank = 1;
  membership.world_size = 4;
  return {
      "gloo", membership, {}, [](int rank) { return "rank " + std::to_string(rank) + " (pid 7)"; }};
}

const Call kCall{.collective = Collective::all_reduce, .number = 42};

// A call.

TEST(Messages, WrongArguments) {
  EXPECT_EQ(on_rank_0(2, [](const GroupPtr& group) { group->all_reduce(at::Tensor()).wait(); }),
            "[thread] all_reduce, rank 0 of 2: a tensor is undefined; make one before the call");
  EXPECT_EQ(on_rank_0(2, [](const GroupPtr& group) { group->broadcast(ones(), 5).wait(); }),
            "[thread] broadcast, rank 0 of 2: root 5 is not a rank of this group; give 0 "
            "to 1");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        group->all_reduce(at::ones({2}, at::kInt), ReduceOp::mean).wait();
                      }),
            "[thread] all_reduce, rank 0 of 2: a mean or a scale needs a floating type, "
            "not Int; take the sum");
  EXPECT_EQ(
      on_rank_0(2,
                [](const GroupPtr& group) { group->all_reduce(at::ones({1}).expand({4})).wait(); }),
      "[thread] all_reduce, rank 0 of 2: a tensor that is written to is expanded: "
      "several of its elements share one place in memory; call clone() first");
  EXPECT_EQ(on_rank_0(2, [](const GroupPtr& group) { group->send(ones(), 0).wait(); }),
            "[thread] send, rank 0 of 2: rank 0 is not a peer; name another rank from 0 to "
            "1");
  EXPECT_EQ(on_rank_0(2, [](const GroupPtr& group) { group->empty({-1}, {}); }),
            "[thread] empty, rank 0 of 2: a size is -1; sizes are 0 or more");
}

TEST(Messages, RanksMakeDifferentCalls) {
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        const bool first = group->rank() == 0;
                        (first ? group->all_reduce(ones()) : group->broadcast(ones(), 0)).wait();
                      }),
            "[thread] all_reduce #1, rank 0 of 2: this rank called all_reduce #1 (sum of 4 "
            "Float elements), but rank 1 called broadcast #1 (4 Float elements, root 0); "
            "every rank must make the same calls, with the same sizes and types, in the "
            "same order");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        const bool first = group->rank() == 0;
                        (first ? group->recv(ones(), 1) : group->send(ones(3), 0)).wait();
                      }),
            "[thread] recv #1, rank 0 of 2: rank 1 sent 3 Float elements, but this rank "
            "expects 4 Float; send and recv must name the same size and type, in the same "
            "order");
}

TEST(Messages, ARankIsAbsent) {
  std::promise<void> has_failed;
  EXPECT_EQ(on_rank_0(2,
                      [&](const GroupPtr& group) {
                        if (group->rank() == 1) return has_failed.get_future().wait();
                        Work work = group->all_reduce(ones());
                        const std::string message =
                            message_of([&] { work.wait(Deadline::after(50ms)); });
                        has_failed.set_value();
                        throw std::runtime_error(message);
                      }),
            "[thread] all_reduce #1, rank 0 of 2: waited T s for rank 1; it is stopped, "
            "stuck, or making different calls (to wait longer, raise the group's timeout)");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        if (group->rank() == 0) group->all_reduce(ones()).wait();
                      }),
            "[thread] all_reduce #1, rank 0 of 2: rank 1 left the group before it made "
            "this call: its program ended, or makes fewer calls than this rank; its output "
            "may say why");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        if (group->rank() == 1) group->abort("the data are damaged");
                        group->barrier().wait();
                      }),
            "[thread] barrier #1, rank 0 of 2: rank 1 ended the group: the data are damaged");
}

TEST(Messages, AGroupThatHasLostARank) {
  const GroupState state = gloo_of_4();
  EXPECT_EQ(masked(state.peer_gone(kCall, 3, PeerEnd::died).what()),
            "[gloo] all_reduce #42, rank 1 of 4: rank 3 (pid N) died before it made or "
            "finished this call; its output and the launcher's say how");
  EXPECT_EQ(masked(state.peer_gone(kCall, 3, PeerEnd::connection_lost).what()),
            "[gloo] all_reduce #42, rank 1 of 4: rank 3 (pid N): its connection was lost "
            "before it made or finished this call: it died, or the network failed; its "
            "output and the launcher's say which");
  EXPECT_EQ(
      masked(
          state.peer_gone(kCall, 3, PeerEnd::failed, "an exception ended it: out of paper").what()),
      "[gloo] all_reduce #42, rank 1 of 4: rank 3 (pid N) failed before it made or "
      "finished this call: an exception ended it: out of paper");
  EXPECT_EQ(masked(state.timed_out(kCall, Deadline::after(5s), {}).what()),
            "[gloo] all_reduce #42, rank 1 of 4: waited T s, though every rank has made "
            "this call; check whether the network between them carries data (to wait "
            "longer, raise the group's timeout)");
  EXPECT_EQ(
      message_of([&] {
        const std::uint8_t votes[] = {1, 1, 0, 1};
        state.check_votes(kCall, votes, {});
      }),
      "[gloo] all_reduce #42, rank 1 of 4: rank 2 (pid N) cannot allocate memory for its part "
      "of this tensor; its own error has the sizes");
}

// Layers that add what they know.

TEST(Messages, ALayerNamesTheRankOnce) {
  const auto lost_in_a_bucket = [] {
    try {
      throw gloo_of_4().peer_gone(kCall, 3, PeerEnd::died);
    } catch (const Error&) {
      rethrow_within(
          {.component = "reducer", .operation = "reducing gradients", .rank = 1, .size = 4},
          ". If no rank reports an error of its own, look at the data");
    }
  };
  EXPECT_EQ(message_of(lost_in_a_bucket),
            "[reducer] reducing gradients ([gloo] all_reduce #42), rank 1 of 4: rank 3 "
            "(pid N) died before it made or finished this call; its output and the "
            "launcher's say how. If no rank reports an error of its own, look at the data");
  const auto within_a_host = [] {
    try {
      throw TimeoutError(ErrorDetails{
          .cause = "waited 3.0 s for rank 1",
          .peer = 1,
          .contexts = {
              {.component = "shm", .operation = "all_gather", .call = 3, .rank = 0, .size = 2}}});
    } catch (const Error&) {
      rethrow_within({.component = "hierarchical",
                      .operation = "all_gather",
                      .call = 9,
                      .caller = "accuracy()",
                      .rank = 2,
                      .size = 4});
    }
  };
  EXPECT_EQ(message_of(within_a_host),
            "[hierarchical] all_gather #9 of accuracy() ([shm] all_gather #3 as rank 0 of "
            "2), rank 2 of 4: waited T s for rank 1");
}

TEST(Messages, AStepOfTraining) {
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        torch::nn::Linear net(2, 2);
                        DistributedDataParallel model(net, group);
                        const at::Tensor loss = model(at::ones({1, 2})).sum();
                        if (group->rank() == 0) loss.backward();
                      }),
            "[reducer] reducing gradients ([thread] broadcast #5 of a backward), rank 0 of "
            "2: rank 1 left the group before it made this call: its program ended, or "
            "makes fewer calls than this rank; its output may say why. If no rank reports "
            "an error of its own, they may have different numbers of batches: give every "
            "rank the same number (DistributedSampler pads or drops), or train inside "
            "lockstep::join");
  EXPECT_EQ(
      on_rank_0(2,
                [](const GroupPtr& group) {
                  torch::nn::Linear net(2, 2);
                  DistributedDataParallel model(net, group, {.check_finite = true});
                  (model(at::ones({1, 2})).sum() / static_cast<double>(group->rank())).backward();
                }),
      "[reducer] reducing gradients, rank 0 of 2: the gradient of weight is not "
      "finite on rank 0; the gradient of bias is not finite on rank 0; every rank "
      "has this error: clear the gradients (optimizer.zero_grad()) and skip the "
      "step, or stop training");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        torch::nn::Embedding net(torch::nn::EmbeddingOptions(4, 2).sparse(true));
                        DistributedDataParallel model(net, group);
                        model(at::zeros({1}, at::kLong)).sum().backward();
                      }),
            "[reducer] rank 0 of 2: parameter weight got a sparse gradient, which is not "
            "supported; make the layer that uses it produce dense ones (Embedding: "
            "sparse(false))");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        torch::nn::Linear net(2 + group->rank(), 2);
                        DistributedDataParallel model(net, group);
                      }),
            "[reducer] rank 0 of 2: the ranks have different models. The first difference: "
            "rank 0 has parameter weight: Float [2, 2], requires grad; rank 1 has "
            "parameter weight: Float [2, 3], requires grad; build the same model, with the "
            "same options, on every rank");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        torch::nn::Linear net(2, 2);
                        DistributedDataParallel model(net, group);
                        if (group->rank() == 1) torch::NoGradGuard(), net->weight.data().add_(1);
                        check_in_sync(model);
                      }),
            "[check_in_sync] rank 0 of 2: the ranks are out of sync: parameter weight has "
            "one value on rank 0, another on rank 1. Only some ranks changed it (`if (rank "
            "== 0)`, another optimizer, faulty memory); go back to a checkpoint, or wrap "
            "the module again, which gives every rank what rank 0 has");
  EXPECT_EQ(message_of([] { DistributedDataParallel(torch::nn::Linear(2, 2), nullptr); }),
            "[DistributedDataParallel] the group is null; call init_process_group()");
}

// A context changes the message, and neither the type nor what only the type holds.

template <class Type>
Type within_fit(const Type& error) {
  try {
    try {
      throw error;
    } catch (...) {
      rethrow_within({.component = "Trainer", .operation = "fit"});
    }
  } catch (const Type& within) {
    EXPECT_EQ(within.what(), "[Trainer] fit: " + std::string(error.what()));
    EXPECT_EQ(typeid(within), typeid(Type));
    return within;
  }
}

TEST(Messages, EachTypeSurvivesAContext) {
  within_fit(Error("it failed"));
  within_fit(UsageError("it failed"));
  within_fit(TimeoutError("it failed"));
  within_fit(CheckpointError("it failed"));
  within_fit(NonFiniteGradient("it failed"));
  within_fit(OutOfSync("it failed"));
  within_fit(ConnectionRefused("it failed"));
  within_fit(AddressInUse("it failed"));
  within_fit(StoreLost("it failed"));
  within_fit(StoreSilent("it failed"));
  within_fit(DamagedImage("cat.jpg", "it is cut off"));
  EXPECT_EQ(within_fit(PeerLost(3, "it left", PeerLost::How::left)).how(), PeerLost::How::left);
  EXPECT_EQ(within_fit(PeerLost(3, "it died")).rank(), 3);
  RankFailure failure{};
  failure.rank = 2;
  EXPECT_EQ(within_fit(RankFailed(failure, "rank 2 failed")).failure().rank, 2);
  EXPECT_EQ(within_fit(ReplicaFailed(1, nullptr, {.cause = "it failed"})).replica(), 1);
}

// Samplers, optimizers, files and the start.

TEST(Messages, DataAndOptimizers) {
  EXPECT_EQ(message_of([] { DistributedSampler(10, 2, 2); }),
            "[DistributedSampler] rank 2 of 2 replicas does not exist; give num_replicas "
            ">= 1 and 0 <= rank < num_replicas");
  EXPECT_EQ(on_rank_0(2,
                      [](const GroupPtr& group) {
                        torch::nn::Linear net(2, 2);
                        DistributedDataParallel model(net, group);
                        clip_grad_norm_(model, std::numeric_limits<double>::quiet_NaN());
                      }),
            "[clip_grad_norm_] rank 0 of 2: max_norm is nan and norm_type 2; the first "
            "must not be negative, the second must be positive");
}

TEST(Messages, Files) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "net.safetensors";
  const std::vector<NamedTensor> tensors = {{"weight", ones()}};
  write_safetensors(path, tensors);
  EXPECT_EQ(message_of(
                [&] { load_state_dict(*torch::nn::Linear(2, 2), read_safetensors(path).tensors); }),
            "the tensors do not fit this module (torch::nn::LinearImpl):\n"
            "  \"weight\" has the shape [4], and the module's is [2, 2]\n"
            "  \"bias\" is missing; build the net that was saved, take the part of the file that "
            "has its tensors (state_dict_of(value, \"model\")), or convert them with "
            "tensor.to(type)");
  std::filesystem::resize_file(path, 40);
  EXPECT_EQ(message_of([&] { read_safetensors(path); }),
            "FOLDER/net.safetensors: its first 8 bytes announce a header of 64 bytes, but "
            "the file has 40 bytes, and a header at most 100000000: it is damaged, "
            "incomplete or no safetensors file");
  EXPECT_EQ(message_of([&] { read_safetensors("/no/such/file"); }),
            "/no/such/file: there is no such file");
}

TEST(Messages, Starting) {
  EXPECT_EQ(
      message_of([] { init_process_group({.init_method = "tcp://", .rank = 0, .world_size = 2}); }),
      "init_method \"tcp://\": it must be tcp://host:port, with a host of rank 0 and "
      "a port from 1 to 65535, as in tcp://node0:29500 or tcp://[2001:db8::1]:29500");
  EXPECT_EQ(message_of([] {
              init_process_group({.backend = "carrier pigeon",
                                  .init_method = "tcp://127.0.0.1:1",
                                  .rank = 0,
                                  .world_size = 1});
            }),
            "there is no backend \"carrier pigeon\"; the backends are auto, shm, gloo, "
            "mpi, nccl, hierarchical, hierarchical:mpi, hierarchical:nccl");
  EXPECT_EQ(
      message_of([] {
        init_process_group({.init_method = "tcp://127.0.0.1:29500", .rank = 4, .world_size = 4});
      }),
      "the rank is 4, but the world size is 4: ranks go from 0 to 3");
}

}  // namespace
}  // namespace lockstep::testing
