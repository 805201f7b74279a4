// SPDX-License-Identifier: BSD-3-Clause
// The names and the order of a module's state, and what loading checks and keeps.
#include "lockstep/checkpoint/state_dict.h"

#include "support/captured_warnings.h"
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

torch::nn::Sequential small_net() {
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(3, 2));
  net->push_back(torch::nn::BatchNorm1d(2));
  net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
  return net;
}

// Two names for one parameter.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    register_module("in", in);
    register_module("out", out);
    out->weight = in->weight;
    out->register_weight();
  }
  struct OutImpl : torch::nn::Module {
    void register_weight() { register_parameter("weight", weight); }
    torch::Tensor weight;
  };
  torch::nn::Linear in{torch::nn::LinearOptions(2, 2).bias(false)};
  std::shared_ptr<OutImpl> out = std::make_shared<OutImpl>();
};

TEST(StateDict, HasPyTorchsNamesAndOrder) {
  EXPECT_THAT(names_of(state_dict(*small_net())),
              ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                          "1.running_var", "1.num_batches_tracked", "2.weight"));
}

TEST(StateDict, SharesMemoryWithoutAutograd) {
  const auto net = small_net();
  const auto state = state_dict(*net);
  const at::Tensor weight = net->parameters()[0];
  EXPECT_EQ(state[0].tensor.data_ptr(), weight.data_ptr());
  EXPECT_FALSE(state[0].tensor.requires_grad());
}

TEST(StateDict, HasTiedWeightsUnderEachName) {
  const TiedNet net;
  const auto state = state_dict(net);
  EXPECT_THAT(names_of(state), ElementsAre("in.weight", "out.weight"));
  EXPECT_EQ(state[0].tensor.data_ptr(), state[1].tensor.data_ptr());
}

TEST(StateDict, OfAWrapperIsThatOfItsModule) {
  auto net = small_net();
  DataParallel model(net, {.device_ids = {torch::Device("cpu")}});
  EXPECT_EQ(names_of(state_dict(*model)), names_of(state_dict(*net)));
  load_state_dict(*model, state_dict(*small_net()));
}

TEST(LoadStateDict, CopiesIntoTheSameTensors) {
  const auto from = small_net();
  auto into = small_net();
  const auto before = into->parameters();
  const auto differences = load_state_dict(*into, state_dict(*from));
  EXPECT_TRUE(differences.missing.empty());
  EXPECT_TRUE(differences.unexpected.empty());
  const auto after = into->parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(after[i].is_same(before[i]));
    EXPECT_TRUE(after[i].requires_grad());
    EXPECT_TRUE(after[i].is_leaf());
    EXPECT_TRUE(after[i].equal(from->parameters()[i]));
    EXPECT_NE(after[i].data_ptr(), from->parameters()[i].data_ptr());
  }
}

TEST(LoadStateDict, ListsEveryDifferenceAndChangesNothing) {
  auto net = small_net();
  std::vector<at::Tensor> before;
  for (const auto& entry : state_dict(*net)) before.push_back(entry.tensor.clone());
  auto tensors = state_dict(*small_net());
  tensors[0].tensor = torch::ones({3, 2});
  tensors[1].tensor = torch::ones({2}, torch::kDouble);
  tensors[2].name = "1.scale";
  EXPECT_THAT([&] { load_state_dict(*net, tensors); },
              ThrowsMessage<CheckpointError>(AllOf(
                  HasSubstr("\"0.weight\" has the shape [3, 2], and the module's is [2, 3]"),
                  HasSubstr("\"0.bias\" is of type Double, and the module's is Float"),
                  HasSubstr("\"1.weight\" is missing"), HasSubstr("\"1.scale\" is unexpected"))));
  const auto after = state_dict(*net);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(after[i].tensor.equal(before[i]));
}

TEST(LoadStateDict, SwapsTensorsOfTheModuleItself) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  std::vector<at::Tensor> before;
  auto tensors = state_dict(*net);
  for (const auto& entry : tensors) before.push_back(entry.tensor.clone());
  std::swap(tensors[0].tensor, tensors[2].tensor);
  tensors[1].tensor = tensors[1].tensor.flip(0);
  load_state_dict(*net, tensors);
  EXPECT_TRUE(net->parameters()[0].equal(before[2]));
  EXPECT_TRUE(net->parameters()[2].equal(before[0]));
  EXPECT_TRUE(net->parameters()[3].equal(before[3]));

  // A view of the target itself, which copy_ refuses because it overlaps.
  tensors = state_dict(*net);
  tensors[0].tensor = tensors[0].tensor.t();
  load_state_dict(*net, tensors);
  EXPECT_TRUE(net->parameters()[0].equal(before[2].t()));
}

TEST(LoadStateDict, RefusesWhatCannotBeCopiedBeforeItCopies) {
  auto net = small_net();
  const at::Tensor before = net->parameters()[0].detach().clone();
  auto tensors = state_dict(*small_net());
  tensors[1].tensor = torch::ones({2}).to_sparse();
  tensors[2].tensor = torch::ones({2}, torch::kMeta);
  EXPECT_THAT([&] { load_state_dict(*net, tensors); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("\"0.bias\" is sparse, or on"),
                                                   HasSubstr("\"1.weight\" is sparse, or on"))));
  EXPECT_TRUE(net->parameters()[0].equal(before));

  tensors = state_dict(*small_net());
  net->named_children()["2"]->register_buffer("wide", torch::ones({1}).expand({3}));
  tensors.push_back({"2.wide", torch::ones({3})});
  EXPECT_THAT([&] { load_state_dict(*net, tensors); },
              ThrowsMessage<CheckpointError>(
                  HasSubstr("\"2.wide\" would be copied into a view whose elements share memory")));
  EXPECT_TRUE(net->parameters()[0].equal(before));
}

TEST(LoadStateDict, ThatIsNotStrictReturnsTheNames) {
  auto net = small_net();
  const auto differences = load_state_dict(
      *net, std::vector<NamedTensor>{{"0.bias", torch::full({2}, 5.0F)}, {"x", torch::ones({1})}},
      /*strict=*/false);
  EXPECT_EQ(differences.missing.size(), 7u);
  EXPECT_THAT(differences.unexpected, ElementsAre("x"));
  EXPECT_TRUE(net->named_parameters()["0.bias"].equal(torch::full({2}, 5.0F)));
  EXPECT_THAT(
      [&] {
        load_state_dict(*net, std::vector<NamedTensor>{{"0.bias", torch::ones({3})}}, false);
      },
      ThrowsMessage<CheckpointError>(
          AllOf(HasSubstr("\"0.bias\" has the shape [3]"), Not(HasSubstr("missing")))));
}

std::vector<NamedTensor> with_prefix(const std::string& prefix, std::vector<NamedTensor> tensors) {
  for (auto& entry : tensors) entry.name = prefix + entry.name;
  return tensors;
}

// As Python's DistributedDataParallel saves its state, torch.compile, and a module around the net.
TEST(LoadStateDict, NamesAPrefix) {
  auto net = small_net();
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    EXPECT_THAT([&] { load_state_dict(*net, with_prefix(prefix, state_dict(*small_net()))); },
                ThrowsMessage<CheckpointError>(
                    AllOf(HasSubstr("missing ones with \"" + prefix + "\" in front"),
                          HasSubstr("cut the first " + std::to_string(prefix.size())))));
  }
  torch::nn::Module outer;
  outer.register_module("module", small_net());
  EXPECT_THAT([&] { load_state_dict(outer, state_dict(*small_net())); },
              ThrowsMessage<CheckpointError>(
                  HasSubstr("missing names are the unexpected ones with \"module.\" in front")));
  EXPECT_THAT(
      [&] {
        load_state_dict(*net, std::vector<NamedTensor>{{"module.x", torch::ones(1)}});
      },
      ThrowsMessage<CheckpointError>(Not(HasSubstr("in front"))));
}

// A head that the file lacks does not hide it; and it would load nothing without a word.
TEST(LoadStateDict, WarnsOfAPrefixThatLoadsNothing) {
  auto net = small_net();
  auto tensors = with_prefix("model.", state_dict(*small_net()));
  tensors.pop_back();
  const testing::CapturedWarnings warnings;
  const StateDifferences differences = load_state_dict(*net, tensors, /*strict=*/false);
  EXPECT_EQ(differences.missing.size(), 8u);
  EXPECT_THAT(warnings.messages(), ElementsAre(HasSubstr("with \"model.\" in front")));
}

TEST(LoadStateDict, RefusesTensorsThatAreNone) {
  auto net = small_net();
  const at::Tensor one = torch::ones({1});
  EXPECT_THAT(
      [&] {
        load_state_dict(*net, std::vector<NamedTensor>{{"a", one}, {"a", one}});
      },
      ThrowsMessage<UsageError>(HasSubstr("two tensors have the name \"a\"")));
  EXPECT_THAT(
      [&] {
        load_state_dict(*net, std::vector<NamedTensor>{{"a", {}}});
      },
      ThrowsMessage<UsageError>(HasSubstr("\"a\" is undefined")));
}

}  // namespace
}  // namespace lockstep
