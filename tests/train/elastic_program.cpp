// SPDX-License-Identifier: BSD-3-Clause
// A training of which members of an elastic job kill themselves where they are told to. Rank 0
// prints the hash of the state at the end.
//   elastic_program KEY=VALUE...    see Plan for the keys
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/die_at_call.h"
#include "tests/parallel/models.h"
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using torch::nn::Sequential;

// A place in the training of one member.
struct Place {
  int member = 0;
  std::string name = {};    // "before", "loss", ...: where die() is called with it
  std::int64_t number = 0;  // of the step, the epoch or the call
};

struct Plan {
  std::string model = "mlp";
  std::vector<Place> deaths = {};  // die=MEMBER:NAME:NUMBER
  // wait=STEP:GENERATION: before this step, all members wait until the generation is open.
  std::map<std::int64_t, int> waits = {};
  std::string checkpoints = {};  // the folder
  std::int64_t epochs = 3;
  std::int64_t microbatches = 4;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char letter : text) {
    if (letter == ':') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

Plan parse(int argc, char** argv) {
  Plan plan;
  const std::map<std::string, std::function<void(const std::string&)>> keys{
      {"model", [&](const std::string& value) { plan.model = value; }},
      {"die",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.deaths.push_back({std::stoi(parts.at(0)), parts.at(1), std::stoll(parts.at(2))});
       }},
      {"wait",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.waits[std::stoll(parts.at(0))] = std::stoi(parts.at(1));
       }},
      {"checkpoints", [&](const std::string& value) { plan.checkpoints = value; }},
      {"epochs", [&](const std::string& value) { plan.epochs = std::stoll(value); }},
      {"microbatches", [&](const std::string& value) { plan.microbatches = std::stoll(value); }},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    keys.at(argument.substr(0, equals))(argument.substr(equals + 1));
  }
  return plan;
}

Plan plan;

int member() {
  static const auto job = ElasticJob::of_this_process();
  return job ? job->member() : -1;
}

void die(const std::string& name, std::int64_t number) {
  for (const Place& place : plan.deaths) {
    if (place.member == member() && place.name == name && place.number == number) {
      ::kill(::getpid(), SIGKILL);
    }
  }
}

// Dies when all ranks have the gradients of a step, and this one has not used them.
std::int64_t current_step = 0;
struct MortalSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    die("update", current_step);
    return SGD::step(std::move(closure));
  }
};

struct Faults : TrainerCallback {
  void before_step(std::int64_t number) override {
    current_step = number;
    die("before", number);
    const auto wait = plan.waits.find(number);
    if (wait == plan.waits.end()) return;
    if (const auto job = ElasticJob::of_this_process()) {
      job->wait_for_generation(wait->second - 1, Deadline::after(std::chrono::seconds(80)));
    }
  }
  void after_step(const StepSummary&) override { die("after", current_step); }
};

Sequential make_net() {
  namespace nn = torch::nn;
  if (plan.model == "linear") return Sequential{nn::Linear(1, 1)};
  if (plan.model == "mlp") {
    return Sequential{nn::Linear(20, 33), nn::ReLU(), Dropout(0.3), nn::Linear(33, 10)};
  }
  if (plan.model == "cnn") {
    return Sequential{nn::Conv2d(nn::Conv2dOptions(1, 8, 3)),
                      nn::BatchNorm2d(8),
                      nn::ReLU(),
                      nn::Flatten(),
                      Dropout(0.5),
                      nn::Linear(8 * 6 * 6, 10)};
  }
  throw std::invalid_argument("what is " + plan.model + "?");
}

std::vector<std::int64_t> sizes_of_input(std::int64_t samples) {
  if (plan.model == "cnn") return {samples, 1, 8, 8};
  return {samples, plan.model == "mlp" ? 20 : 1};
}

void train() {
  constexpr std::int64_t kSamples = 50;
  torch::manual_seed(3);
  const auto group = init_process_group({.timeout = std::chrono::seconds(60)});
  Sequential net = make_net();
  const std::int64_t outputs = net->parameters().back().size(0);
  const at::Tensor input = testing::values(sizes_of_input(kSamples), 1);
  const at::Tensor target = testing::values({kSamples, outputs}, 2);
  DistributedSampler sampler(std::size_t{kSamples}, group, {.seed = 5});
  MemoryLoader loader(input, target, sampler, {.batch_size = 3});
  TrainerOptions options{.epochs = plan.epochs,
                         .microbatches = plan.microbatches,
                         .lr_schedule =
                             [calls = 0](std::int64_t steps) mutable {
                               die("schedule", ++calls);
                               return optim::CosineAnnealingLR{.T_max = steps};
                             },
                         .ema_decay = 0.9,
                         .watch = {.name = "loss", .lower_is_better = true},
                         .log =
                             [](const std::string& line) {
                               std::printf("%s\n", line.c_str());
                               std::fflush(stdout);
                             },
                         .batches_per_line = 0};
  if (!plan.checkpoints.empty()) {
    options.checkpoints =
        TrainerCheckpointOptions{.folder = plan.checkpoints, .every_steps = 1, .resume = true};
  }
  Trainer trainer(net, group, options);
  trainer.optimize_with<MortalSgd>(torch::optim::SGDOptions(0.05).momentum(0.9));
  std::int64_t epoch = 0;
  const auto loss = [](auto& model, auto& batch) {
    die("loss", current_step);
    return at::mse_loss(model(batch.data), batch.target);
  };
  for (const Place& place : plan.deaths) {
    if (place.member == member() && place.name == "call") {
      testing::die_at_call(static_cast<int>(place.number));
    }
  }
  trainer.fit(loader, loss,
              {.sampler = &sampler,
               .begin_epoch = [&](std::int64_t number) { epoch = number; },
               .evaluate =
                   [&] {
                     die("evaluation", epoch);
                     DistributedSampler shares(std::size_t{kSamples}, trainer.group(),
                                               {.shuffle = false});
                     MemoryLoader rows(input, target, shares, {.batch_size = 10});
                     const auto losses = [](const auto& output, const auto& wanted) {
                       return at::mse_loss(output, wanted).to(at::kDouble).mul(wanted.size(0));
                     };
                     const auto found = evaluate(net, rows, shares, trainer.group(), losses);
                     return Metrics{{"loss", found.mean()}};
                   },
               .end_epoch =
                   [&](const EpochSummary& summary) {
                     die("end", summary.epoch);
                     trainer.group().barrier().wait();
                   },
               .callbacks = {std::make_shared<Faults>()}});
  if (trainer.group().rank() != 0) return;
  std::printf("hash %s of %d ranks\n", state_sha256(*net, trainer.optimizer()).c_str(),
              trainer.group().size());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    lockstep::plan = lockstep::parse(argc, argv);
    lockstep::train();
    return 0;
  } catch (const lockstep::UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
