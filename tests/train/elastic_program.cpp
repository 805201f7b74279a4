// SPDX-License-Identifier: BSD-3-Clause
// A training of an elastic job, to whose members happens what they are told. Rank 0 prints the hash
// of the state at the end. scripts/chaos uses it too.
//   elastic_program KEY=VALUE...    see Plan for the keys
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/die_at_call.h"
#include "tests/parallel/models.h"
#include "tests/train/injected_faults.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/launch/resize.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

using torch::nn::Sequential;

// A place in the training of one member.
struct Place {
  int member = 0;
  std::string name = {};    // "before", "loss", ...: where die() is called with it
  std::int64_t number = 0;  // of the step, the epoch or the call
  // For inject_fault(). For "step", which is within the optimizer's step(): the microseconds after
  // which it is killed there.
  std::string how = {};
};

struct Plan {
  std::string model = "mlp";
  std::vector<Place> deaths = {};  // die=MEMBER:NAME:NUMBER[:HOW]
  // wait=STEP:GENERATION: before this step, all members wait until the generation is open.
  std::map<std::int64_t, int> waits = {};
  // hold=STEP:FILE: before this step, all members wait until there is such a file.
  std::map<std::int64_t, std::string> holds = {};
  std::map<std::int64_t, int> resizes = {};  // resize=STEP:RANKS: member 0 asks for them
  std::optional<Place> flip = {};            // flip=MEMBER:STEP: a bit of its weights, before it
  std::optional<Place> nan = {};             // nan=MEMBER:STEP: its loss; check_finite is set
  // full_disk=FIRST:LAST: before these steps, members fill the disk of the checkpoints' folder. It
  // has room again before the next step.
  std::int64_t full_from = 0;
  std::int64_t full_to = -1;
  std::string samples = {};      // the file that gets the samples of each loss
  std::string checkpoints = {};  // the folder
  std::int64_t every = 1;        // steps between them; 0: at the ends of epochs
  std::int64_t epochs = 3;
  std::int64_t microbatches = 4;
  std::int64_t check_in_sync = 0;
  std::string group = "job";  // or "split": each rank trains with a group of its own
  std::string again = {};     // "fit" or "trainer": trains once more, with this one or another one
  int slow_member = -1;       // if given, the load is balanced
  std::string sharded = {};   // "sgd", "adam" or "adamw": the optimizer, if it is a sharded one
  std::string backend = "auto";
  // spawn=METHOD:RANKS:MOST: starts the ranks itself, with "fork" or "spawn".
  std::optional<StartMethod> spawn = {};
  int ranks = 0;
  int most = 0;
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

// "MEMBER:STEP"
Place place_of_step(const std::string& value) {
  const auto parts = split(value);
  return {.member = std::stoi(parts.at(0)), .number = std::stoll(parts.at(1))};
}

Plan parse(int argc, char** argv) {
  Plan plan;
  const std::map<std::string, std::function<void(const std::string&)>> keys{
      {"model", [&](const std::string& value) { plan.model = value; }},
      {"die",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.deaths.push_back({std::stoi(parts.at(0)), parts.at(1), std::stoll(parts.at(2)),
                                parts.size() > 3 ? parts[3] : "kill"});
       }},
      {"wait",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.waits[std::stoll(parts.at(0))] = std::stoi(parts.at(1));
       }},
      {"hold",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.holds[std::stoll(parts.at(0))] = parts.at(1);
       }},
      {"flip", [&](const std::string& value) { plan.flip = place_of_step(value); }},
      {"nan", [&](const std::string& value) { plan.nan = place_of_step(value); }},
      {"full_disk",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.full_from = std::stoll(parts.at(0));
         plan.full_to = std::stoll(parts.at(1));
       }},
      {"samples", [&](const std::string& value) { plan.samples = value; }},
      {"resize",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.resizes[std::stoll(parts.at(0))] = std::stoi(parts.at(1));
       }},
      {"checkpoints", [&](const std::string& value) { plan.checkpoints = value; }},
      {"every", [&](const std::string& value) { plan.every = std::stoll(value); }},
      {"epochs", [&](const std::string& value) { plan.epochs = std::stoll(value); }},
      {"microbatches", [&](const std::string& value) { plan.microbatches = std::stoll(value); }},
      {"check_in_sync", [&](const std::string& value) { plan.check_in_sync = std::stoll(value); }},
      {"group", [&](const std::string& value) { plan.group = value; }},
      {"again", [&](const std::string& value) { plan.again = value; }},
      {"spawn",
       [&](const std::string& value) {
         const auto parts = split(value);
         plan.spawn = parts.at(0) == "fork" ? StartMethod::fork : StartMethod::spawn;
         plan.ranks = std::stoi(parts.at(1));
         plan.most = std::stoi(parts.at(2));
       }},
      {"slow", [&](const std::string& value) { plan.slow_member = std::stoi(value); }},
      {"sharded", [&](const std::string& value) { plan.sharded = value; }},
      {"backend", [&](const std::string& value) { plan.backend = value; }},
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

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Once for each place: a step may be repeated.
void die(const std::string& name, std::int64_t number) {
  const auto found = std::ranges::find_if(plan.deaths, [&](const Place& place) {
    return place.member == member() && place.name == name && place.number == number;
  });
  if (found == plan.deaths.end()) return;
  const std::string how = found->how;
  plan.deaths.erase(found);
  say(fmt::format("member {} (process {}) at {} {}: {}", member(), ::getpid(), name, number, how));
  testing::inject_fault(how);
}

bool is_at(const std::optional<Place>& place, std::int64_t step) {
  return place && place->member == member() && place->number == step;
}

// As if from outside: wherever this process is then.
void die_after(std::chrono::nanoseconds time) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  ::timer_create(CLOCK_MONOTONIC, &event, &timer);
  itimerspec at{};
  at.it_value.tv_nsec = time.count();
  ::timer_settime(timer, 0, &at, nullptr);
}

// Dies when all ranks have the gradients of a step, before this one uses them, just after, or
// meanwhile.
std::int64_t current_step = 0;
template <class Optimizer>
struct Mortal : Optimizer {
  using Optimizer::Optimizer;
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    die("update", current_step);
    for (const Place& place : plan.deaths) {
      if (place.member == member() && place.name == "step" && place.number == current_step) {
        die_after(std::chrono::microseconds(std::stoll(place.how)));
      }
    }
    const at::Tensor loss = Optimizer::step(std::move(closure));
    die("updated", current_step);
    return loss;
  }
};

// From now on, socket calls of the members that are to die at one of them are counted.
void begin_to_count(const std::string& name) {
  for (const Place& place : plan.deaths) {
    if (place.member == member() && place.name == name) {
      testing::die_at_call(static_cast<int>(place.number));
    }
  }
}

struct Faults : TrainerCallback {
  explicit Faults(const torch::nn::Module& net) : net_(net) {}

  void before_step(std::int64_t number) override {
    current_step = number;
    die("before", number);
    flip_bit(number);
    change_disk(number);
    hold(number);
    const auto resize = plan.resizes.find(number);
    if (resize != plan.resizes.end() && member() == 0) {
      ask_to_resize(environment("TORCHELASTIC_RUN_ID").value(), resize->second);
    }
    const auto wait = plan.waits.find(number);
    if (wait == plan.waits.end()) return;
    if (const auto job = ElasticJob::of_this_process()) {
      job->wait_for_generation(wait->second - 1, Deadline::after(std::chrono::seconds(80)));
    }
  }
  void after_step(const StepSummary&) override { die("after", current_step); }
  void before_checkpoint(std::int64_t step) override { die("checkpoint", step); }

 private:
  void flip_bit(std::int64_t step) const {
    if (!is_at(plan.flip, step)) return;
    say(fmt::format("member {} before step {}: a bit flips", member(), step));
    testing::flip_bit(net_.parameters().front());
  }

  static void change_disk(std::int64_t step) {
    const auto disk = std::filesystem::path(plan.checkpoints).parent_path();
    if (step >= plan.full_from && step <= plan.full_to) testing::fill_disk(disk);
    if (step == plan.full_to + 1) testing::empty_disk(disk);
  }

  static void hold(std::int64_t step) {
    const auto found = plan.holds.find(step);
    if (found == plan.holds.end()) return;
    say(fmt::format("member {} holds before step {}", member(), step));
    testing::wait_for_file(found->second);
  }

  const torch::nn::Module& net_;
};

// Some ten times as long as a net's microbatch takes, also beside busy cores.
constexpr std::chrono::milliseconds kDelayOfSlowMember{10};

Sequential make_net() {
  namespace nn = torch::nn;
  if (plan.model == "linear") return Sequential{nn::Linear(1, 1)};
  if (plan.model == "wide") {  // its optimizer updates 15 blocks
    return Sequential{nn::Linear(1, 300), nn::ReLU(), nn::Linear(300, 100)};
  }
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

void choose_optimizer(Trainer<Sequential>& trainer) {
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  if (plan.sharded.empty()) return trainer.optimize_with<Mortal<torch::optim::SGD>>(sgd);
  if (plan.sharded == "sgd") return trainer.optimize_with<Mortal<optim::SGD>>(sgd);
  if (plan.sharded == "adam") {
    return trainer.optimize_with<Mortal<optim::Adam>>(
        torch::optim::AdamOptions(0.01).amsgrad(true));
  }
  if (plan.sharded == "adamw") {
    return trainer.optimize_with<Mortal<optim::AdamW>>(torch::optim::AdamWOptions(0.01));
  }
  throw std::invalid_argument("what is " + plan.sharded + "?");
}

// Appends the samples of a loss. Each is the last number of its target's row.
void record_samples(const at::Tensor& target, std::int64_t epoch, int generation) {
  if (plan.samples.empty()) return;
  std::string line = fmt::format("{} {} {}", epoch, current_step, generation);
  const at::Tensor numbers = target.select(1, -1).contiguous();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    line += fmt::format(" {}", numbers[i].item<std::int64_t>());
  }
  testing::append_line(plan.samples, line);
}

// Returns the hash of the state.
std::string train() {
  constexpr std::int64_t kSamples = 50;
  die("start", 0);
  torch::manual_seed(3);
  auto group = init_process_group({.backend = plan.backend, .timeout = std::chrono::seconds(60)});
  if (plan.group == "split") group = group->split({group->rank()});
  Sequential net = make_net();
  const std::int64_t outputs = net->parameters().back().size(0);
  const at::Tensor input = testing::values(sizes_of_input(kSamples), 1);
  const at::Tensor target = at::cat(
      {testing::values({kSamples, outputs}, 2), at::arange(kSamples, at::kFloat).unsqueeze(1)}, 1);
  DistributedSampler sampler(std::size_t{kSamples}, group, {.seed = 5});
  MemoryLoader loader(input, target, sampler, {.batch_size = 3});
  TrainerOptions options{.epochs = plan.epochs,
                         .microbatches = plan.microbatches,
                         .balance_load = plan.slow_member >= 0,
                         .lr_schedule =
                             [calls = 0](std::int64_t steps) mutable {
                               die("schedule", ++calls);
                               if (calls == 3) begin_to_count("adopting");
                               return optim::CosineAnnealingLR{.T_max = steps};
                             },
                         .ema_decay = 0.9,
                         .evaluate_ema = plan.sharded.empty(),
                         .watch = {.name = "loss", .lower_is_better = true},
                         .check_finite = plan.nan.has_value(),
                         .check_in_sync = plan.check_in_sync,
                         .shard_optimizer = !plan.sharded.empty(),
                         .log = say,
                         .batches_per_line = 0};
  if (!plan.checkpoints.empty()) {
    options.checkpoints = TrainerCheckpointOptions{
        .folder = plan.checkpoints, .every_steps = plan.every, .resume = true};
  }
  Trainer trainer(net, group, options);
  choose_optimizer(trainer);
  std::int64_t epoch = 0;
  const auto loss = [&](auto& model, auto& batch) {
    die("loss", current_step);
    record_samples(batch.target, epoch, trainer.group().generation());
    if (plan.slow_member >= 0 && member() == plan.slow_member) {
      std::this_thread::sleep_for(kDelayOfSlowMember);
    }
    const at::Tensor mean = at::mse_loss(model(batch.data), batch.target.narrow(1, 0, outputs));
    return is_at(plan.nan, current_step) ? mean * std::nan("") : mean;
  };
  begin_to_count("call");
  const FitOptions fit{
      .sampler = &sampler,
      .begin_epoch = [&](std::int64_t number) { epoch = number; },
      .evaluate =
          [&] {
            die("evaluation", epoch);
            DistributedSampler shares(std::size_t{kSamples}, trainer.group(), {.shuffle = false});
            MemoryLoader rows(input, target, shares, {.batch_size = 10});
            const auto losses = [&](const auto& output, const auto& wanted) {
              return at::mse_loss(output, wanted.narrow(1, 0, outputs))
                  .to(at::kDouble)
                  .mul(wanted.size(0));
            };
            const auto found = evaluate(net, rows, shares, trainer.group(), losses);
            return Metrics{{"loss", found.mean()}};
          },
      .end_epoch =
          [&](const EpochSummary& summary) {
            die("end", summary.epoch);
            trainer.group().barrier().wait();
            options.log(fmt::format("epoch {} had {} steps", summary.epoch, summary.steps));
          },
      .callbacks = {std::make_shared<Faults>(*net)}};
  trainer.fit(loader, loss, fit);
  if (plan.again == "fit") trainer.fit(loader, loss, fit);
  if (plan.again == "trainer") Trainer(net, trainer.group(), options);
  auto* const sharded = dynamic_cast<optim::ShardedOptimizer*>(&trainer.optimizer());
  if (sharded != nullptr) {
    sharded->consolidate_state();
    if (trainer.group().rank() != 0) return "";
  }
  const std::string hash = state_sha256(*net, trainer.optimizer());
  if (trainer.group().rank() == 0) {
    std::printf("hash %s of %d ranks\n", hash.c_str(), trainer.group().size());
  }
  return hash;
}

void spawn_ranks() {
  const ElasticOptions elastic{.most = plan.most};
  const std::vector<std::string> hashes = spawn(plan.ranks, [](int) { return train(); },
                                                {.start_method = *plan.spawn, .elastic = elastic});
  for (const std::string& hash : hashes) std::printf("returned %s\n", hash.c_str());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    lockstep::plan = lockstep::parse(argc, argv);
    lockstep::plan.spawn ? lockstep::spawn_ranks() : static_cast<void>(lockstep::train());
    return 0;
  } catch (const lockstep::UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
