// SPDX-License-Identifier: BSD-3-Clause
// Evaluation over ranks: each sample counts once, whatever loader yields it and whatever model.
#include "lockstep/train/evaluate.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "support/join.h"
#include "support/rank_processes.h"
#include "tests/parallel/errors.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/data.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_rank_threads;
using ::testing::ThrowsMessage;

using Group = std::shared_ptr<ProcessGroup>;

// Sample i of n: its data is i, its target 0 for the first and 1 for all others.
class Numbers : public torch::data::Dataset<Numbers> {
 public:
  explicit Numbers(std::size_t size) : size_(size) {}
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({2}, static_cast<float>(index)),
            torch::tensor(index == 0 ? 0 : 1, torch::kLong)};
  }
  c10::optional<std::size_t> size() const override { return size_; }
  at::Tensor data() const {
    return torch::arange(static_cast<std::int64_t>(size_))
        .to(torch::kFloat)
        .view({-1, 1})
        .expand({-1, 2});
  }
  at::Tensor targets() const {
    return torch::arange(static_cast<std::int64_t>(size_)).gt(0).to(torch::kLong);
  }

 private:
  std::size_t size_;
};

auto loader_of(Numbers numbers, const DistributedSampler& sampler,
               torch::data::DataLoaderOptions options = 2) {
  return torch::data::make_data_loader(numbers.map(torch::data::transforms::Stack<>()), sampler,
                                       options);
}

// Always says 0.
at::Tensor say_zero(const at::Tensor& x) {
  return torch::tensor({1.F, 0.F}).expand({x.size(0), 2});
}

struct SaysZero : torch::nn::Module {
  SaysZero() {
    dropout = register_module("dropout", torch::nn::Dropout());
    scale = register_parameter("scale", torch::ones({2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    EXPECT_FALSE(is_training() || dropout->is_training());
    return dropout(say_zero(x) * scale);
  }
  torch::nn::Dropout dropout{nullptr};
  at::Tensor scale;
};

// The same in TorchScript.
torch::jit::Module script_that_says_zero() {
  torch::jit::Module script("SaysZero");
  script.register_parameter("row", torch::tensor({1.F, 0.F}, torch::requires_grad()),
                            /*is_buffer=*/false);
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(
      "def forward(self, x):\n"
      "  assert not self.training\n"
      "  return 0 * x + self.row\n");
  return script;
}

at::Tensor sum_of_data(const at::Tensor& output, const at::Tensor& /*target*/) {
  return output.select(1, 0).sum();
}

TEST(Evaluate, CountsEverySampleOnceForAnyNumberOfRanks) {
  const Numbers numbers(7);
  for (const int ranks : {1, 2, 4, 9}) {  // of nine ranks, two have only padding
    run_rank_threads(ranks, [&](const Group& group) {
      for (const bool shuffle : {false, true}) {
        const DistributedSampler sampler(7, group, {.shuffle = shuffle});
        MemoryLoader memory(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
        EXPECT_EQ(accuracy(say_zero, memory, sampler, group), 1. / 7) << ranks;
        const auto loader = loader_of(numbers, sampler);
        EXPECT_EQ(accuracy(say_zero, *loader, sampler, *group), 1. / 7) << ranks;
        const auto with_workers =
            loader_of(numbers, sampler, torch::data::DataLoaderOptions(1).workers(2));
        EXPECT_EQ(accuracy(say_zero, *with_workers, sampler, *group), 1. / 7) << ranks;

        const auto identity = [](const at::Tensor& x) { return x; };
        const Evaluation sums = evaluate(
            identity, *loader, sampler, group, [](const at::Tensor& x, const at::Tensor& target) {
              return torch::stack({x.select(1, 0).sum(), target.sum().to(torch::kFloat)});
            });
        EXPECT_THAT(sums.sums, ElementsAre(21, 6)) << ranks;
        EXPECT_EQ(sums.samples, 7);
        EXPECT_EQ(sums.mean(), 3);
        EXPECT_EQ(sums.mean(1), 6. / 7);
      }
      const DistributedSampler dropping(7, group, {.shuffle = false, .drop_last = true});
      MemoryLoader rest(numbers.data(), numbers.targets(), dropping, {.batch_size = 2});
      if (ranks <= 7) {
        const auto counted = evaluate(say_zero, rest, dropping, group, sum_of_data);
        EXPECT_EQ(counted.samples, 7 / ranks * ranks);
      }
    });
  }
}

TEST(Evaluate, TakesEveryKindOfModel) {
  run_rank_threads(2, [](const Group& group) {
    const Numbers numbers(5);
    const DistributedSampler sampler(5, group, {.shuffle = false});
    MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
    const auto expect_right = [&](auto&& model) {
      EXPECT_EQ(accuracy(model, loader, sampler, group), 1. / 5);
      const torch::nn::Module* module = detail::module_in(model);
      if (module == nullptr) return;
      EXPECT_TRUE(module->is_training());
      for (const auto& part : module->modules(/*include_self=*/false)) {
        EXPECT_TRUE(part->is_training());
      }
    };
    // Holders and pointers may be const.
    const auto expect_right_also_const = [&](auto&& model) {
      expect_right(model);
      expect_right(std::as_const(model));
    };
    expect_right(SaysZero());
    expect_right_also_const(std::make_shared<SaysZero>());
    torch::nn::Sequential sequential{SaysZero()};
    expect_right_also_const(sequential);
    expect_right(*sequential);
    expect_right_also_const([](const at::Tensor& x) { return say_zero(x); });

    const auto make = [] { return std::make_shared<SaysZero>(); };
    DataParallel replicated(make(), {.replicas = 2, .make_replica = make});
    expect_right_also_const(replicated);
    DistributedDataParallel wrapped(make(), group);
    expect_right_also_const(wrapped);
    expect_right(*wrapped);
    expect_right(static_cast<DistributedDataParallelBase&>(wrapped));
    DataParallel script_replicas(script_that_says_zero(), {.replicas = 2});
    expect_right_also_const(script_replicas);
    DistributedDataParallel script(script_that_says_zero(), group);
    expect_right_also_const(script);
  });
}

// On a device without elements, so that no GPU is needed.
struct OnMeta : torch::nn::Module {
  OnMeta() { register_parameter("unused", torch::empty({2}, at::kMeta)); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(Evaluate, MovesBatchesToTheModuleAndNotToTheGroup) {
  run_rank_threads(2, [](const Group& group) {
    ASSERT_EQ(group->device(), at::kCPU);
    const Numbers numbers(4);
    const DistributedSampler sampler(4, group, {.shuffle = false});
    MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
    std::vector<at::DeviceType> devices;
    const auto note_devices = [&](const at::Tensor& output, const at::Tensor& target) {
      devices.push_back(output.device().type());
      devices.push_back(target.device().type());
      return torch::ones({1});
    };
    evaluate(OnMeta(), loader, sampler, group, note_devices);
    EXPECT_THAT(devices, ElementsAre(at::kMeta, at::kMeta));

    devices.clear();
    struct Batch {
      at::Tensor data;
      at::Tensor target;
    };
    std::vector<Batch> on_meta{{numbers.data().to(at::kMeta).slice(0, 0, 2),
                                numbers.targets().to(at::kMeta).slice(0, 0, 2)}};
    const auto identity = [](const at::Tensor& x) { return x; };
    evaluate(identity, on_meta, sampler, group, note_devices);
    EXPECT_THAT(devices, ElementsAre(at::kMeta, at::kMeta)) << "a function's batches do not move";
  });
}

struct Frozen : torch::nn::Module {
  Frozen() {
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    dropout = register_module("dropout", torch::nn::Dropout());
    norm->eval();
  }
  at::Tensor forward(const at::Tensor& x) {
    EXPECT_FALSE(is_training() || norm->is_training() || dropout->is_training());
    EXPECT_FALSE(torch::GradMode::is_enabled());
    return dropout(norm(x));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

TEST(Evaluate, RestoresTheModeOfEachModuleAlsoAfterAnException) {
  run_rank_threads(2, [](const Group& group) {
    const Numbers numbers(4);
    const DistributedSampler sampler(4, group, {.shuffle = false});
    MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
    Frozen model;
    const auto expect_restored = [&] {
      EXPECT_TRUE(model.is_training());
      EXPECT_FALSE(model.norm->is_training());
      EXPECT_TRUE(model.dropout->is_training());
      EXPECT_TRUE(torch::GradMode::is_enabled());
    };
    accuracy(model, loader, sampler, group);
    expect_restored();
    const auto fail = [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
      throw std::runtime_error("the metric's own");
    };
    EXPECT_THROW(evaluate(model, loader, sampler, group, fail), std::runtime_error);
    expect_restored();
    model.eval();
    accuracy(model, loader, sampler, group);
    EXPECT_FALSE(model.is_training());
  });
}

TEST(Evaluate, TakesStructuresOfTensors) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  struct Batch {
    Pair data;
    std::vector<at::Tensor> target;
  };
  run_rank_threads(2, [](const Group& group) {
    // Three samples; rank 1's second is padding.
    const DistributedSampler sampler(3, group, {.shuffle = false});
    const at::Tensor own = torch::tensor({1.F, 100.F}) * (group->rank() + 1);
    std::vector<Batch> batches{{{own, own + 1}, {own + 2}}};
    const auto model = [](const Pair& data) { return data.first + data.second; };
    const auto sum = [](const at::Tensor& output, const std::vector<at::Tensor>& target) {
      return (output + target[0]).sum();
    };
    EXPECT_EQ(evaluate(model, batches, sampler, group, sum).sums[0], 3 + 3 + 300 + 3 + 6 + 3);
    EXPECT_EQ(batches[0].data.first.size(0), 2) << "the loader's own tensors changed";
  });
}

template <class Function>
void expect_refused(Function&& function, const std::string& text) {
  EXPECT_THAT(function,
              ThrowsMessage<UsageError>(AllOf(HasSubstr("[evaluate] rank"), HasSubstr(text))));
}

TEST(Evaluate, RefusesLoadersThatDoNotFitTheSampler) {
  run_rank_threads(2, [](const Group& group) {
    const Numbers numbers(7);
    const DistributedSampler sampler(7, group);
    const auto incomplete =
        loader_of(numbers, sampler, torch::data::DataLoaderOptions(3).drop_last(true));
    expect_refused([&] { accuracy(say_zero, *incomplete, sampler, group); },
                   "rank 0 yields 3 samples, the sampler 4");
    const DistributedSampler other(3, group);
    const auto loader = loader_of(numbers, sampler);
    expect_refused([&] { accuracy(say_zero, *loader, other, group); },
                   "rank 0 yields 4 samples, the sampler 2");
    const auto unordered = loader_of(
        numbers, sampler, torch::data::DataLoaderOptions(2).workers(2).enforce_ordering(false));
    expect_refused([&] { accuracy(say_zero, *unordered, sampler, group); }, "enforce_ordering");
    const DistributedSampler alone(7, /*num_replicas=*/1, /*rank=*/0);
    const auto all = loader_of(numbers, alone);
    expect_refused([&] { accuracy(say_zero, *all, alone, group); },
                   "sampler of rank 0 deals the samples of rank 0 of 1");
    const DistributedSampler first(7, /*num_replicas=*/2, /*rank=*/0);
    const auto same = loader_of(numbers, first);
    expect_refused([&] { accuracy(say_zero, *same, first, group); },
                   "sampler of rank 1 deals the samples of rank 0 of 2");
    const DistributedSampler none(0, group);
    const auto empty = loader_of(Numbers(0), none);
    expect_refused([&] { accuracy(say_zero, *empty, none, group); }, "nothing to evaluate");
  });
}

TEST(Evaluate, RefusesShapesThatDoNotFit) {
  run_rank_threads(2, [](const Group& group) {
    const Numbers numbers(4);
    const DistributedSampler sampler(4, group, {.shuffle = false});
    MemoryLoader columns(numbers.data(), numbers.targets().view({4, 1}), sampler,
                         {.batch_size = 2});
    expect_refused([&] { accuracy(say_zero, columns, sampler, group); }, "not [2, 2] and [2, 1]");
    MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 1});
    int call = 0;
    const auto grows = [&](const at::Tensor&, const at::Tensor&) { return torch::ones({++call}); };
    expect_refused([&] { evaluate(say_zero, loader, sampler, group, grows); },
                   "1 sums for one batch and 2 for another");
    const auto by_rank = [&](const at::Tensor&, const at::Tensor&) {
      return torch::ones({group->rank() + 1});
    };
    expect_refused([&] { evaluate(say_zero, loader, sampler, group, by_rank); },
                   "2 sums on rank 1 and 1 on a lower one");
    struct Batch {
      at::Tensor data;
      at::Tensor target;
    };
    std::vector<Batch> uneven{{torch::ones({2, 2}), torch::ones({1})}};
    expect_refused([&] { accuracy(say_zero, uneven, sampler, group); }, "shape [1] and 2 samples");
    struct NoTensors {
      std::vector<at::Tensor> data;
      int target;
    };
    std::vector<NoTensors> nothing{{{}, 0}};
    const auto ignore = [](const std::vector<at::Tensor>&) { return 0; };
    const auto none = [](int, int) { return torch::ones({1}); };
    expect_refused([&] { evaluate(ignore, nothing, sampler, group, none); }, "holds no tensor");
  });
}

// A net whose statistics differ between ranks after training, as a BatchNorm's do.
torch::nn::Sequential trained_with_own_statistics(const Group& group) {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  net->push_back(torch::nn::BatchNorm1d(1));
  net->push_back(torch::nn::Linear(1, 2));
  DistributedDataParallel model(net, group);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = torch::arange(8).to(torch::kFloat).view({8, 1}) + 3. * group->rank();
    model(x).sum().backward();
  }
  return net;
}

TEST(Evaluate, ScoresTheModelThatACheckpointHas) {
  const at::Tensor data = torch::arange(12).to(torch::kFloat).view({12, 1});
  const at::Tensor targets = torch::zeros({12}, torch::kLong);
  const auto sum = [](const at::Tensor& output, const at::Tensor&) { return output.sum(); };
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const Group& group) {
      auto net = trained_with_own_statistics(group);
      const DistributedSampler sampler(12, group, {.shuffle = false});
      MemoryLoader loader(data, targets, sampler, {.batch_size = 2});
      auto mean = net->named_buffers()["0.running_mean"];
      const auto of_ranks = all_gather_object(mean.item<float>(), group);
      const auto expect_scored = [&](float expected, const EvaluateOptions& options) {
        mean.fill_(of_ranks[group->rank()]);
        const double score = evaluate(net, loader, sampler, group, sum, options).sums[0];
        if (options.buffers == EvaluationBuffers::own) {
          EXPECT_EQ(mean.item<float>(), of_ranks[group->rank()]);
          return;
        }
        EXPECT_FLOAT_EQ(mean.item<float>(), expected) << ranks;
        net->eval();
        const double saved = net->forward(data).sum().item<double>();
        net->train();
        EXPECT_NEAR(score, saved, 1e-3) << ranks;
      };
      float average = 0;
      for (const float value : of_ranks) average += value / static_cast<float>(ranks);
      expect_scored(of_ranks[0], {});
      expect_scored(average, {.buffers = EvaluationBuffers::mean});
      expect_scored(0, {.buffers = EvaluationBuffers::own});
    });
  }
}

struct OddBuffers : torch::nn::Module {
  OddBuffers() {
    counts = register_buffer("counts", torch::zeros({2}, torch::kLong));
    register_buffer("sparse", torch::eye(2).to_sparse());
    register_buffer("expanded", torch::ones({1}).expand({3}));
    again = register_buffer("again", counts);
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor counts;
  at::Tensor again;
};

TEST(ShareBuffers, TakesEachBufferOnceAndLeavesWhatCannotBeWritten) {
  for (const auto which : {EvaluationBuffers::of_rank_0, EvaluationBuffers::mean}) {
    run_rank_threads(3, [&](const Group& group) {
      OddBuffers module;
      module.counts.fill_(group->rank() + 5);
      share_buffers(module, group, which);
      EXPECT_TRUE(module.counts.eq(5).all().item<bool>());
    });
  }
}

TEST(Evaluate, RefusesSamplersThatDifferBetweenRanks) {
  run_rank_threads(2, [](const Group& group) {
    const auto message = [&](std::size_t size, std::int64_t seed) {
      const Numbers numbers(size);
      const DistributedSampler sampler(size, group, {.seed = seed});
      MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
      return testing::message_of<UsageError>([&] { accuracy(say_zero, loader, sampler, group); });
    };
    EXPECT_THAT(
        message(group->rank() == 1 ? 8 : 6, 0),
        HasSubstr(
            "the sampler of rank 0 has 6 samples and the seed 0, the sampler of rank 1 has 8"));
    EXPECT_THAT(message(6, group->rank()), HasSubstr("the sampler of rank 1 has 6 and 1"));
  });
}

// Over the ranks of a backend, as processes.
class EvaluateOnOneRank : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Over, EvaluateOnOneRank, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_P(EvaluateOnOneRank, NamesItself) {
  testing::run_ranks(2, [](testing::Rank& rank) {
    const auto group = testing::join(rank, {.backend = GetParam()});
    torch::nn::Linear net(2, 2);
    DistributedDataParallel model(net, group);
    const at::Tensor x = torch::ones({2, 2});
    model(x).sum().backward();
    const Numbers numbers(4);
    const DistributedSampler sampler(4, group, {.shuffle = false});
    MemoryLoader loader(numbers.data(), numbers.targets(), sampler, {.batch_size = 2});
    const auto go_on = [&] {
      if (rank.rank() == 0) {
        accuracy(model, loader, sampler, group);
      } else {
        model(x).sum().backward();
      }
    };
    const std::string message = testing::message_of<UsageError>(go_on);
    EXPECT_THAT(message, AllOf(HasSubstr(" of accuracy()"), HasSubstr(" of a backward"),
                               HasSubstr("call accuracy() on every rank")));
    if (rank.rank() == 1) {
      EXPECT_THAT(message, HasSubstr("Or rank 0 came to accuracy() since it has fewer batches"));
    }
  });
}

}  // namespace
}  // namespace lockstep
