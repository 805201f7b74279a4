// SPDX-License-Identifier: BSD-3-Clause
// Ranks whose models have come to differ.
#include <set>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

void flip_bit(const Tensor& tensor, int bit) {
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
}

struct BufferedImpl : torch::nn::Module {
  BufferedImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    table = register_buffer("table", torch::ones({3}));
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)) * table; }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor table;
};
TORCH_MODULE(Buffered);

template <class Model>
std::string sync_error(const Model& model, const InSyncOptions& options = {}) {
  return message_of<OutOfSync>([&] { check_in_sync(model, options); });
}

TEST(CheckInSync, NamesTheFirstParameterThatDiffersAndTheRanks) {
  run_rank_threads(4, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    net->hidden->weight.set_requires_grad(false);  // frozen ones count as well
    DistributedDataParallel model(net, group);
    EXPECT_EQ(sync_error(model), "");

    if (group->rank() == 2) flip_bit(net->last->bias, 40);
    const std::string error = sync_error(model);
    EXPECT_THAT(error, HasSubstr("the ranks are out of sync: parameter last.bias has one value on "
                                 "ranks 0, 1 and 3, another on rank 2. Only some ranks"));
    EXPECT_THAT(error, HasSubstr(fmt::format("rank {} of 4", group->rank())));

    flip_bit(net->hidden->weight, 8 * group->rank());
    EXPECT_THAT(sync_error(model),
                HasSubstr("parameter hidden.weight has one value on rank 0, another on rank 1, "
                          "another on rank 2, another on rank 3; 1 more differs."));
    flip_bit(net->hidden->weight, 8 * group->rank());
    if (group->rank() == 2) flip_bit(net->last->bias, 40);
    EXPECT_EQ(sync_error(model), "");
    // Without the wrapper, of any module.
    check_in_sync(*net, *group);
    if (group->rank() == 0) flip_bit(net->middle->bias, 0);
    EXPECT_THROW(check_in_sync(*net, *group), OutOfSync);
  });
}

TEST(CheckInSync, ComparesBuffersButNoStatisticsOfARank) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Buffered net;
    DistributedDataParallel model(net, group);
    model(values({4, 3}, group->rank())).sum().backward();
    EXPECT_FALSE(torch::equal(net->norm->running_mean, torch::zeros({3})));
    EXPECT_EQ(sync_error(model), "");
    if (group->rank() == 1) flip_bit(net->table, 3);
    EXPECT_THAT(sync_error(model), HasSubstr("buffer table has one value on rank 0, another on "));
    EXPECT_EQ(sync_error(model, {.buffers = false}), "");
  });
}

TEST(CheckInSync, ComparesGradientsIfAskedTo) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Buffered net;
    DistributedDataParallel model(net, group);
    const InSyncOptions with_gradients{.gradients = true};
    EXPECT_EQ(sync_error(model, with_gradients), "");  // there are none yet
    const Tensor x = values({4, 3}, group->rank());
    model(x).square().sum().backward();
    EXPECT_EQ(sync_error(model, with_gradients), "");
    if (group->rank() == 1) flip_bit(net->linear->weight.grad(), 17);
    EXPECT_EQ(sync_error(model), "");
    EXPECT_THAT(sync_error(model, with_gradients),
                HasSubstr("the gradient of linear.weight has one value on rank 0, another on "));
    // Only one rank has it, and there is nothing to compare.
    if (group->rank() == 1) net->linear->weight.mutable_grad().reset();
    EXPECT_EQ(sync_error(model, with_gradients), "");
  });
}

TEST(CheckInSync, NamesModulesThatDifferAndLeavesTheGroupUsable) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const torch::nn::Linear net(3, 3 + group->rank());
    EXPECT_THAT(message_of<UsageError>([&] { check_in_sync(*net, *group); }),
                AllOf(HasSubstr("parameter weight: Float [3, 3]"), HasSubstr("Float [4, 3]")));
    const torch::nn::Linear same(3, 3);
    EXPECT_THAT(message_of<UsageError>(
                    [&] { check_in_sync(*same, *group, {.gradients = group->rank() == 1}); }),
                HasSubstr("gradients=true"));
    group->barrier().wait();
  });
}

TEST(TensorHash, DependsOnEveryBitAndOnNothingElse) {
  for (const std::int64_t length : {1, 3, 8, 9, 67}) {
    const Tensor tensor = values({length}).to(at::kFloat);
    std::set<std::uint64_t> seen{tensor_hash(tensor)};
    for (int bit = 0; bit < 32 * length; ++bit) {
      const Tensor other = tensor.clone();
      flip_bit(other, bit);
      EXPECT_TRUE(seen.insert(tensor_hash(other)).second) << "bit " << bit << " of " << length;
    }
    EXPECT_TRUE(seen.insert(tensor_hash(-tensor)).second || length == 1);  // signs alone
  }
  EXPECT_NE(tensor_hash(torch::zeros({8})), tensor_hash(torch::zeros({9})));
  EXPECT_NE(tensor_hash(torch::zeros({0})), 0u);
  EXPECT_EQ(tensor_hash(values({5, 7}).t().contiguous()), tensor_hash(values({5, 7}).t()));
  EXPECT_NE(tensor_hash(values({5, 7})), tensor_hash(values({5, 7}).t()));
  EXPECT_EQ(tensor_hash(torch::_neg_view(values({5}))), tensor_hash(-values({5})));
  const Tensor sparse = torch::eye(3).to_sparse();
  EXPECT_EQ(tensor_hash(sparse), tensor_hash(torch::eye(3).to_sparse()));
  EXPECT_EQ(tensor_hash(sparse), tensor_hash(sparse.to_sparse_csr()));
  EXPECT_NE(tensor_hash(sparse), tensor_hash(sparse * 2));
  EXPECT_NE(tensor_hash(sparse), tensor_hash(torch::eye(3).roll(1, 0).to_sparse()));
}

}  // namespace
}  // namespace lockstep::testing
