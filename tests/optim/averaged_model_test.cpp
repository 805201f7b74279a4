// SPDX-License-Identifier: BSD-3-Clause
// Averages of weights: their values, their state beside Python's, and the models that get them.
#include "lockstep/optim/averaged_model.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/pythons.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;
using testing::Tied;
using testing::values;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

// Every value of the module follows the step.
void set_weights(torch::nn::Module& module, int step) {
  const at::NoGradGuard no_grad;
  double salt = step;
  for (const auto& [name, tensor] : state_dict(module)) {
    tensor.copy_(values(tensor.sizes(), salt += 0.1) * 10);
  }
}

Sequential normalized_net() {
  Sequential net;
  net->push_back(Linear(4, 3));
  net->push_back(BatchNorm1d(3));
  return net;
}

at::Tensor find(const std::vector<NamedTensor>& state, const std::string& name) {
  for (const NamedTensor& named : state) {
    if (named.name == name) return named.tensor;
  }
  throw std::out_of_range(name);
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& state) {
  std::vector<std::string> names;
  for (const NamedTensor& named : state) names.push_back(named.name);
  return names;
}

std::vector<at::Tensor> copies_of(const std::vector<NamedTensor>& state) {
  std::vector<at::Tensor> copies;
  for (const NamedTensor& named : state) copies.push_back(named.tensor.clone());
  return copies;
}

void expect_same_tensors(const std::vector<at::Tensor>& some,
                         const std::vector<at::Tensor>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_TRUE(at::equal(some[i], others[i])) << i;
}

// A layer with one weight, which set_to() sets.
Linear one_weight() {
  return Linear(torch::nn::LinearOptions(1, 1).bias(false));
}

void set_to(const Linear& net, double value) {
  const at::NoGradGuard no_grad;
  net->weight.fill_(value);
}

double weight_of(const Linear& net) {
  return net->weight.item<double>();
}

TEST(AveragedModel, IsTheEqualAverageOfAllUpdates) {
  auto net = one_weight();
  AveragedModel average(net);
  for (const double weight : {1, 4, 7}) {
    set_to(net, weight);
    average.update();
  }
  EXPECT_EQ(average.updates(), 3);
  EXPECT_EQ(weight_of(average.module()), 4);
  EXPECT_EQ(weight_of(net), 7);
}

TEST(ExponentialMovingAverage, ForgetsByItsDecay) {
  auto net = one_weight();
  ExponentialMovingAverage ema(net, {.decay = 0.75});
  for (const double weight : {8, 16, 0}) {
    set_to(net, weight);
    ema.update();
  }
  EXPECT_EQ(weight_of(ema.module()), 7.5);  // 8, 10, 7.5
}

TEST(ExponentialMovingAverage, WarmsUpFromASmallDecay) {
  auto net = one_weight();
  ExponentialMovingAverage ema(net, {.decay = 0.22, .warmup = true});
  double expected = 0;
  for (int n = 0; n < 6; ++n) {
    set_to(net, n);
    ema.update();
    const double decay = n == 0 ? 0 : std::min(0.22, (1.0 + n) / (10 + n));
    expected = decay * expected + (1 - decay) * n;
    EXPECT_NEAR(weight_of(ema.module()), expected, 1e-6) << n;
  }
}

TEST(ExponentialMovingAverage, KeepsSmallChangesOfHalfParametersInFloats) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    auto net = one_weight();
    net->to(type);
    ExponentialMovingAverage ema(net, {.decay = 0.999});
    set_to(net, 1);
    ema.update();
    set_to(net, 2);
    for (int step = 0; step < 500; ++step) ema.update();  // 0.001 of 1 is lost in bfloat16
    const at::Tensor average = find(ema.state_dict(), "module.weight");
    EXPECT_EQ(average.scalar_type(), at::kFloat);
    EXPECT_NEAR(average.item<double>(), 2 - std::pow(0.999, 500), 1e-4);
    const at::Tensor weight = ema.module()->weight;
    EXPECT_EQ(weight.scalar_type(), type);
    EXPECT_TRUE(at::equal(weight, average.to(type)));
  }
}

TEST(AveragedModel, CopiesOrAveragesBuffers) {
  auto net = normalized_net();
  AveragedModel copied(net);
  AveragedModel averaged(net, {.use_buffers = true});
  std::vector<at::Tensor> means;
  for (int step = 0; step < 2; ++step) {
    set_weights(*net, step);
    means.push_back(find(state_dict(*net), "1.running_mean").clone());
    copied.update();
    averaged.update();
  }
  EXPECT_TRUE(at::equal(find(copied.state_dict(), "module.1.running_mean"), means[1]));
  EXPECT_TRUE(at::allclose(find(averaged.state_dict(), "module.1.running_mean"),
                           (means[0] + means[1]) / 2));
  // A count has no average.
  const at::Tensor count = find(state_dict(*net), "1.num_batches_tracked");
  EXPECT_TRUE(at::equal(find(averaged.state_dict(), "module.1.num_batches_tracked"), count));
  EXPECT_TRUE(at::equal(find(state_dict(*averaged.module()), "1.running_mean"),
                        find(averaged.state_dict(), "module.1.running_mean")));
}

TEST(AveragedModel, AveragesTiedAndFrozenParametersOnce) {
  Tied net;
  net->bias.set_requires_grad(false);
  AveragedModel average(net,
                        {.make_replica = [] { return std::make_shared<testing::TiedImpl>(); }});
  std::vector<at::Tensor> weights;
  for (int step = 0; step < 3; ++step) {
    set_weights(*net, step);
    weights.push_back(net->weight.detach().clone());
    average.update();
  }
  const auto state = average.state_dict();
  const at::Tensor tied = find(state, "module.weight");
  EXPECT_TRUE(tied.is_alias_of(find(state, "module.in.weight")));
  EXPECT_TRUE(at::allclose(tied, (weights[0] + weights[1] + weights[2]) / 3));
  Tied module = average.module();
  EXPECT_TRUE(at::equal(module->in->weight, tied));
  EXPECT_TRUE(at::equal(module->weight, tied));
  EXPECT_FALSE(net->bias.requires_grad());
}

TEST(AveragedModel, HasAModuleOfItsOwn) {
  torch::manual_seed(1);
  Mlp net;
  AveragedModel average(*net);
  average.update();
  const std::shared_ptr<testing::MlpImpl> module = average.module();
  const at::Tensor input = values({2, 6});
  const at::Tensor before = net->forward(input);
  set_weights(*net, 5);
  EXPECT_TRUE(at::equal(module->forward(input), before));
  EXPECT_FALSE(module->is_training());
  EXPECT_FALSE(module->forward(input).requires_grad());
  EXPECT_EQ(average.module(), module);
  EXPECT_TRUE(net->is_training());
  for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(AveragedModel, SaysHowToMakeAModuleWithoutClone) {
  testing::ConvNet net;
  AveragedModel refused(net);
  refused.update();
  EXPECT_THAT(message_of<UsageError>([&] { refused.module(); }),
              ::testing::AllOf(HasSubstr("[AveragedModel] cannot make a replica of"),
                               HasSubstr(".make_replica"), HasSubstr(".trust_constructors")));
  ExponentialMovingAverage trusted(net.ptr(), {.trust_constructors = true});
  trusted.update();
  EXPECT_TRUE(at::equal(trusted.module()->last->weight, net->last->weight));
}

TEST(SwapIn, GivesTheModelItsWeightsBack) {
  auto net = normalized_net();
  AveragedModel average(net);
  for (int step = 0; step < 3; ++step) {
    set_weights(*net, step);
    average.update();
  }
  const auto own = copies_of(state_dict(*net));
  const auto parameters = net->parameters();
  const auto expect_averages_in_scope = [&] {
    const auto averaged = average.swap_in();
    const auto state = state_dict(*net);
    for (const NamedTensor& named : state) {
      EXPECT_TRUE(at::equal(named.tensor, find(average.state_dict(), "module." + named.name)));
    }
    net->forward(values({5, 4}));  // a BatchNorm in training mode writes its buffers
    throw std::runtime_error("the evaluation failed");
  };
  EXPECT_THROW(expect_averages_in_scope(), std::runtime_error);
  expect_same_tensors(copies_of(state_dict(*net)), own);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].is_same(net->parameters()[i]));
  }
}

TEST(SwapIn, RefusesTrainingWithinItsScope) {
  auto net = one_weight();
  ExponentialMovingAverage ema(net);
  EXPECT_EQ(message_of<UsageError>([&] { static_cast<void>(ema.swap_in()); }),
            "[ExponentialMovingAverage] swap_in() was called before the first update(); call "
            "update() after optimizer.step()");
  EXPECT_THAT(message_of<UsageError>([&] { ema.module(); }),
              HasSubstr("module() was called before the first update()"));
  ema.update();
  {
    const auto averaged = ema.swap_in();
    EXPECT_THAT(message_of<UsageError>([&] { ema.update(); }),
                HasSubstr("end the scope of swap_in() before training goes on"));
    EXPECT_THAT(message_of<UsageError>([&] { static_cast<void>(ema.swap_in()); }),
                HasSubstr("has the averaged weights already"));
  }
  ema.update();
  EXPECT_EQ(ema.updates(), 2);
}

TEST(ExponentialMovingAverage, RefusesWhatItCannotAverage) {
  auto net = one_weight();
  for (const double decay : {std::nan(""), -0.1, 1.0}) {
    EXPECT_THAT(
        message_of<UsageError>([&] { ExponentialMovingAverage refused(net, {.decay = decay}); }),
        HasSubstr("it must be from 0 to below 1"));
  }
  EXPECT_THAT(message_of<UsageError>([] { AveragedModel refused(Mlp(nullptr)); }),
              HasSubstr("the module is empty"));
  EXPECT_THAT(message_of<UsageError>([] { AveragedModel refused(Sequential{}); }),
              HasSubstr("the module has no parameters"));
}

TEST(AveragedModel, RefusesAModelThatHasChanged) {
  const auto refusal = [](const auto& change) {
    auto net = normalized_net();
    AveragedModel average(net);
    average.update();
    change(*net);
    const std::string text = message_of<UsageError>([&] { average.update(); });
    EXPECT_EQ(message_of<UsageError>([&] { static_cast<void>(average.swap_in()); }), text);
    EXPECT_EQ(average.updates(), 1);
    return text;
  };
  EXPECT_EQ(
      refusal([](auto& net) { net.to(at::kDouble); }),
      "[AveragedModel] 0.weight is Double [3, 4] on cpu, and was Float [3, 4] on cpu when the "
      "average was made; make a new average after changing the model");
  EXPECT_THAT(refusal([](auto& net) { net.push_back(Linear(3, 2)); }),
              HasSubstr("2.bias was registered after the average was made"));
  EXPECT_THAT(refusal([](auto& net) {
                net.parameters()[0].set_data(torch::zeros({2, 4}));
              }),
              HasSubstr("0.weight is Float [2, 4] on cpu, and was Float [3, 4]"));
}

TEST(AveragedModel, HasPythonsState) {
  const auto pythons = testing::pythons_with("torch");
  if (pythons.empty()) return testing::skip_or_fail("no Python here has torch");
  const testing::TemporaryFolder folder;
  auto net = normalized_net();
  ExponentialMovingAverage ema(net, {.decay = 0.9});
  AveragedModel swa(net, {.use_buffers = true});
  for (int step = 0; step < 20; ++step) {
    set_weights(*net, step);
    write_torch_file(folder.path() / std::to_string(step), state_dict(*net));
    ema.update();
    swa.update();
  }
  write_torch_file(folder.path() / "ema", ema.state_dict());
  write_torch_file(folder.path() / "swa", swa.state_dict());
  for (const std::string& python : pythons) {
    testing::Program program({python, "-W", "ignore", "-c", R"(
import sys, torch
from torch.optim.swa_utils import AveragedModel
folder = sys.argv[1]
def load(name):
    return torch.load(folder + '/' + name, weights_only=hasattr(torch, 'compile'))
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
ema = AveragedModel(net, avg_fn=lambda average, new, n: 0.9 * average + 0.1 * new)
swa = AveragedModel(net)
for step in range(20):
    net.load_state_dict(load(str(step)))
    ema.update_parameters(net)
    swa.update_parameters(net)
for name, here in (('ema', ema), ('swa', swa)):
    theirs = load(name)
    assert list(theirs) and set(theirs) == set(here.state_dict()), name
    for key, value in here.state_dict().items():
        if name == 'swa' and 'running' in key:
            continue  # averaged there, copied here
        if not hasattr(torch, 'compile') and ('running' in key or 'num_batches' in key):
            continue  # torch 1 leaves the buffers of the average as they were
        assert theirs[key].dtype == value.dtype, key
        torch.testing.assert_close(theirs[key], value, msg=key)
    here.load_state_dict(theirs)
torch.save(ema.state_dict(), folder + '/python')
)",
                              folder.path().string()});
    ASSERT_EQ(program.wait(), 0) << python << program.err();
    ExponentialMovingAverage loaded(normalized_net());
    loaded.load_state_dict(state_dict_of(read_torch_file(folder.path() / "python")));
    EXPECT_EQ(loaded.updates(), 20);
    expect_same_tensors(copies_of(loaded.state_dict()), copies_of(ema.state_dict()));
  }
}

TEST(AveragedModel, RefusesAStateThatDoesNotFit) {
  AveragedModel average(normalized_net());
  const auto before = copies_of(average.state_dict());
  auto state = average.state_dict();
  EXPECT_THAT(names_of(state),
              ElementsAre("n_averaged", "module.0.weight", "module.0.bias", "module.1.weight",
                          "module.1.bias", "module.1.running_mean", "module.1.running_var",
                          "module.1.num_batches_tracked"));
  for (NamedTensor& named : state) named.tensor = named.tensor + 1;
  state[1].tensor = torch::zeros({4, 3});
  state[2].name = "0.bias";
  EXPECT_EQ(message_of<CheckpointError>([&] { average.load_state_dict(state); }),
            "[AveragedModel] the state does not fit the averages of this module "
            "(torch::nn::SequentialImpl):\n"
            "  module.0.weight has the shape [4, 3], and here it is [3, 4]\n"
            "  module.0.bias is missing\n"
            "  0.bias is unexpected");
  expect_same_tensors(copies_of(average.state_dict()), before);
}

TEST(ExponentialMovingAverage, GoesOnFromACheckpointWithTheSameBits) {
  const testing::TemporaryFolder folder;
  const auto group = init_process_group();
  const auto contents = [](const Sequential& net, const WeightAverage& ema) {
    return CheckpointContents{.module = net.ptr(), .tensors = ema.state_dict()};
  };
  auto net = normalized_net();
  ExponentialMovingAverage ema(net, {.decay = 0.9, .warmup = true});
  for (int step = 0; step < 5; ++step) {
    set_weights(*net, step);
    ema.update();
  }
  {
    CheckpointFolder checkpoints(folder.path(), group);
    checkpoints.save(contents(net, ema), {.step = 5});
  }
  auto resumed_net = normalized_net();
  ExponentialMovingAverage resumed(resumed_net, {.decay = 0.9, .warmup = true});
  CheckpointFolder checkpoints(folder.path(), group);
  ASSERT_TRUE(checkpoints.load(contents(resumed_net, resumed)));
  for (int step = 5; step < 9; ++step) {
    for (auto one : {net, resumed_net}) set_weights(*one, step);
    ema.update();
    resumed.update();
    expect_same_tensors(copies_of(resumed.state_dict()), copies_of(ema.state_dict()));
  }
}

// One step of training with the samples of this rank.
template <class Model>
void train_step(Model& model, torch::optim::Optimizer& optimizer, int step, int rank) {
  optimizer.zero_grad();
  model(values({4, 6}, 3.0 * step + rank)).pow(2).mean().backward();
  optimizer.step();
}

// All ranks get the averages of the same weights. Rank 0 evaluates by itself now and then, which
// must not disturb training.
void expect_same_averages(const DistributedDataParallelOptions& options, bool sharded) {
  std::vector<std::vector<at::Tensor>> averages(2);
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    set_weights(*net, 1);
    auto model = DistributedDataParallel(net, group, options);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (sharded) {
      optimizer = std::make_unique<optim::Adam>(model, torch::optim::AdamOptions(1e-2));
    } else {
      optimizer = std::make_unique<optim::Adam>(net->parameters(), 1e-2);
    }
    ExponentialMovingAverage ema(model, {.decay = 0.5});
    at::Tensor expected;
    for (int step = 0; step < 6; ++step) {
      train_step(model, *optimizer, step, group->rank());
      ema.update();
      const at::Tensor weight = net->last->weight.detach();
      expected = step == 0 ? weight.clone() : expected.lerp(weight, 0.5);
      if (step % 2 == 0 && group->rank() == 0) {
        const auto averaged = ema.swap_in();
        EXPECT_TRUE(at::equal(net->last->weight, expected));
      }
      const auto averaged = ema.swap_in();
      EXPECT_TRUE(at::equal(model(values({2, 6})), ema.module()->forward(values({2, 6}))));
    }
    EXPECT_TRUE(at::equal(ema.module()->last->weight, expected));
    averages[static_cast<std::size_t>(group->rank())] = copies_of(ema.state_dict());
  });
  expect_same_tensors(averages[0], averages[1]);
}

TEST(ExponentialMovingAverage, IsTheSameOnAllRanks) {
  expect_same_averages({}, /*sharded=*/false);
  expect_same_averages({}, /*sharded=*/true);
  expect_same_averages({.whole_gradients = false}, /*sharded=*/true);
}

TEST(ExponentialMovingAverage, AveragesTheModuleOfADataParallel) {
  Mlp net;
  auto model = DataParallel(net, {.replicas = 2});
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ExponentialMovingAverage ema(model, {.decay = 0.5});
  at::Tensor expected;
  for (int step = 0; step < 4; ++step) {
    train_step(model, optimizer, step, 0);
    ema.update();
    const at::Tensor weight = net->last->weight.detach();
    expected = step == 0 ? weight.clone() : expected.lerp(weight, 0.5);
    const auto averaged = ema.swap_in();
    EXPECT_TRUE(at::allclose(model(values({4, 6})), ema.module()->forward(values({4, 6}))));
  }
  Mlp module = ema.module();
  EXPECT_TRUE(at::equal(module->last->weight, expected));
}

}  // namespace
}  // namespace lockstep
