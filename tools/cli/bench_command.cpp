// SPDX-License-Identifier: BSD-3-Clause
// The options of `lockstep bench`, and its runs on ranks.
#include "tools/cli/bench_command.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <functional>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "tools/bench/bench_output.h"
#include "tools/bench/known_elements.h"
#include "tools/bench/memory_plan.h"
#include "tools/cli/help.h"
#include "tools/cli/option_values.h"
#include "tools/cli/print.h"
#include "tools/cli/rank_options.h"
#include "tools/recipes/launch_plan.h"
#include "tools/recipes/recipe_options.h"

namespace lockstep::cli {
namespace {

constexpr std::int64_t kKib = 1024;
constexpr std::int64_t kMib = 1024 * kKib;
constexpr std::int64_t kTib = 1024 * 1024 * kMib;

const std::map<std::string, ReduceOp> kOps{{"sum", ReduceOp::sum},
                                           {"mean", ReduceOp::mean},
                                           {"min", ReduceOp::min},
                                           {"max", ReduceOp::max},
                                           {"product", ReduceOp::product}};
const std::map<std::string, Algorithm> kAlgorithms{{"automatic", Algorithm::automatic},
                                                   {"ring", Algorithm::ring}};

template <class Value>
std::vector<std::string> names(const std::map<std::string, Value>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return names;
}

// Ranks that measure have one thread each, and print their own lines.
const SpawnOptions kOneThreadEach{.threads = 1, .prefix = false};

// 1024 for "KiB", "kb" or "K", and so on; 1 for "B" or nothing.
std::optional<std::int64_t> bytes_of(std::string unit) {
  for (char& letter : unit) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (unit.empty() || unit == "b") return 1;
  const auto power = std::string_view("kmgt").find(unit.front());
  const std::string rest = unit.substr(1);
  const bool known = rest.empty() || rest == "b" || rest == "i" || rest == "ib";
  if (power == std::string_view::npos || !known) return std::nullopt;
  return kKib << (10 * power);
}

// Reads a size in bytes, such as 4096 or 4MiB.
std::int64_t read_size(const std::string& text) {
  const auto unit = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto bytes = bytes_of(text.substr(unit));
  const auto count = parse_number(text.substr(0, unit), Range<std::int64_t>{1, kTib});
  if (!bytes || !count || *count > kTib / *bytes) {
    throw UsageError(
        fmt::format("--sizes \"{}\": give 1 byte to 1 TiB, as in 4096, 1KiB or 4MiB", text));
  }
  return *count * *bytes;
}

// Reads one of the kinds by its name; `choices` lists them.
template <class Kind>
std::function<Kind(const std::string&)> reader_of(const char* option, std::vector<Kind> kinds,
                                                  const char* choices) {
  return [=](const std::string& text) {
    for (const Kind kind : kinds) {
      if (text == bench::name(kind)) return kind;
    }
    throw UsageError(fmt::format("{} \"{}\": give {}", option, text, choices));
  };
}

}  // namespace

void BenchCommand::describe(::CLI::App& app) {
  app.require_subcommand(1);
  add_examples(app, {{"lockstep bench all-reduce --ranks 2", "Measure all_reduce on two ranks"},
                     {"lockstep bench step mlp --ranks 2", "Measure a training step"}});
  const std::vector<std::pair<std::string, Collective>> verbs{
      {"all-reduce", Collective::all_reduce},
      {"all-gather", Collective::all_gather},
      {"broadcast", Collective::broadcast},
      {"reduce-scatter", Collective::reduce_scatter}};
  for (const auto& [verb, collective] : verbs) {
    ::CLI::App* sub = app.add_subcommand(
        verb, "Measure time and bandwidth for each size, and compare with memory bandwidth");
    describe_collective(*sub);
    add_examples(*sub, {{fmt::format("lockstep bench {} --ranks 2", verb),
                         "Measure eleven sizes from 1 KiB to 100 MiB on two ranks"},
                        {fmt::format("lockstep bench {} --sizes 4MiB --backend gloo", verb),
                         "Measure one size over a chosen backend"}});
    collectives_.emplace_back(sub, collective);
  }
  step_ = app.add_subcommand(
      "step", "Measure a training step in one process, in processes side by side, and with DDP");
  describe_step(*step_);
  add_examples(*step_, {{"lockstep bench step mlp --ranks 2",
                         "Compare a step of two ranks with one of a single process"},
                        {"lockstep bench step cnn --optimizer torch,sharded --amp none,bf16",
                         "Measure four combinations, alternating"}});
  step_->add_flag(
      "--check-finite", check_finite,
      "Search for infinite and NaN gradients in DistributedDataParallel (default: off)");
  describe_optimizers(*step_);
  using Hook = bench::CommHookKind;
  add_list<Hook>(
      *step_, "--comm-hook", comm_hooks,
      reader_of<Hook>("--comm-hook", {Hook::none, Hook::fp16, Hook::bf16, Hook::power_sgd},
                      "none, fp16, bf16, power_sgd, or some as in none,bf16"),
      "Communication hook: none, fp16_compress_hook (fp16), bf16_compress_hook (bf16) or "
      "power_sgd_hook (power_sgd); several alternate, as in none,bf16 (default: none)")
      ->allow_extra_args(false)
      ->type_name("HOOKS");
  describe_ranks(*step_, kCounts, "Number of ranks (default: one per core, but at least 2)");
  rank_options.describe(*step_);
  memory_ = app.add_subcommand("memory",
                               "Predict the memory of a training, from two steps of one process");
  describe_step(*memory_);
  add_examples(*memory_, {{"lockstep bench memory mlp25m-adam --ranks 8",
                           "Predict what eight ranks will take"},
                          {"lockstep bench memory mlp25m-adam --optimizer torch,sharded",
                           "Compare the state of optimizers"}});
  describe_optimizers(*memory_);
  describe_ranks(*memory_, kCounts, "Number of ranks (default: one per core, but at least 2)");
  dp_ = app.add_subcommand("dp",
                           "Measure a training step in one thread, in several, and in replicas");
  describe_step(*dp_);
  add_examples(*dp_, {{"lockstep bench dp mlp --ranks 2", "Compare two replicas with one thread"},
                      {"lockstep bench dp cnn --batch-size 256 --json",
                       "Measure with another batch, for a program"}});
  describe_ranks(*dp_, {2, kCounts.most},
                 "Number of replicas, and of threads (default: one per core, but at least 2)");
}

void BenchCommand::describe_optimizers(::CLI::App& app) {
  app.option_defaults()->group("Variants");
  using Optimizer = bench::OptimizerKind;
  add_list<Optimizer>(
      app, "--optimizer", optimizers,
      reader_of<Optimizer>(
          "--optimizer",
          {Optimizer::torch, Optimizer::fused, Optimizer::sharded, Optimizer::divided,
           Optimizer::one_copy},
          "torch, fused, sharded, divided or one-copy, or several, as in torch,sharded"),
      "Optimizer: libtorch's (torch), lockstep::optim's (fused), sharded over the ranks "
      "(sharded), sharded with whole_gradients = false (divided), or sharded with "
      "one_copy_per_host (one-copy); several alternate, as in torch,sharded (default: torch)")
      ->allow_extra_args(false)
      ->type_name("OPTIMIZERS");
  using Amp = bench::AmpKind;
  add_list<Amp>(app, "--amp", amps,
                reader_of<Amp>("--amp", {Amp::none, Amp::bf16, Amp::fp16},
                               "none, bf16, fp16, or some as in none,bf16"),
                "Type in which layers compute: the parameters' (none), bf16 or fp16; several "
                "alternate, as in none,bf16 (default: none)")
      ->allow_extra_args(false)
      ->type_name("TYPES");
}

void BenchCommand::describe_step(::CLI::App& app) {
  std::string models = "Model to train:";
  for (const auto& known : bench::all_models()) {
    models += fmt::format("\n  {}: {}", known.name, known.summary);
  }
  app.add_option("MODEL", model, models)->required();
  app.option_defaults()->group("Measured step");
  app.add_option(
         "--device", device,
         fmt::format("Device: cpu, cuda (a GPU for each rank) or cuda:N (default: {})", device))
      ->type_name("DEVICE");
  add_number(app, "--batch-size", batch_size, kBatchSizes,
             "Number of samples per rank, or for all replicas together (default: the model's)");
  app.add_flag("--set-to-none", set_to_none,
               "Gradients reset to none before each step (default: zeroed in place)");
}

void BenchCommand::describe_ranks(::CLI::App& app, const Range<int>& range, const char* what) {
  app.option_defaults()->group("Ranks and devices");
  add_number(app, "--ranks", ranks, range, what);
  app.option_defaults()->group("Output");
  app.add_flag("--json", json, "One JSON object, and nothing else, on standard output");
}

void BenchCommand::describe_collective(::CLI::App& app) {
  app.option_defaults()->group("Measured calls");
  add_list<std::int64_t>(app, "--sizes", sizes, read_size,
                         "Sizes in bytes, as in 1KiB,4MiB (default: eleven from 1 KiB to 100 MiB)")
      ->allow_extra_args(false)
      ->type_name("SIZES");
  choose_from(
      app.add_option("--dtype", type, fmt::format("Type of the elements (default: {})", type)),
      names(bench::element_types()));
  choose_from(
      app.add_option("--op", op, fmt::format("Operation that reduces elements (default: {})", op)),
      names(kOps));
  choose_from(app.add_option("--algorithm", algorithm,
                             fmt::format("Algorithm of all-reduce (default: {})", algorithm)),
              names(kAlgorithms));
  app.add_flag("--ordinary", ordinary, "Ordinary tensors (default: tensors from group->empty)");
  describe_ranks(app, kCounts, "Number of ranks (default: one per core, but at least 2)");
  rank_options.describe(app);
}

std::shared_ptr<ProcessGroup> BenchCommand::join(std::optional<at::Device> on) const {
  return init_process_group(
      {.backend = rank_options.backend, .timeout = rank_options.timeout, .device = on});
}

StatusLine BenchCommand::status(const std::string& what) const {
  return bench::bench_status(json ? OutputStream::err : OutputStream::out, what);
}

template <class Function>
auto BenchCommand::on_ranks(const std::string& what, const Function& function) const
    -> std::optional<std::invoke_result_t<Function, const std::shared_ptr<ProcessGroup>&>> {
  const auto member = membership_in_environment();
  if (!member || member->world_size == 1) {
    const auto body = [&](int rank) { return function(join(choose_device(device, rank))); };
    SpawnOptions options = kOneThreadEach;
    // The terminal of any launcher may belong to several ranks, or to a file.
    if (!member) options.status = status(what);
    return spawn(rank_count(), body, options).front();
  }
  if (ranks) {
    throw UsageError(fmt::format("--ranks {}: a launcher has started the ranks already", *ranks));
  }
  const auto joined = join(choose_device(device, member->local_rank));
  auto result = function(joined);
  if (joined->rank() != 0) return std::nullopt;
  return result;
}

int BenchCommand::run() const {
  if (step_->parsed()) return run_step();
  if (dp_->parsed()) return run_dp();
  if (memory_->parsed()) return run_memory();
  return run_collective(std::ranges::find_if(collectives_, [](const auto& verb) {
                          return verb.first->parsed();
                        })->second);
}

// The ranks check whether there is such a GPU, since CUDA does not survive a fork.
at::Device BenchCommand::device_of(int local_rank) const {
  constexpr int kAny = std::numeric_limits<c10::DeviceIndex>::max();
  return *choose_device(device, local_rank, kAny);
}

int BenchCommand::rank_count() const {
  return ranks.value_or(std::max(2, available_cores()));
}

int BenchCommand::run_collective(Collective collective) const {
  const bench::CollectiveBench bench{.collective = collective,
                                     .type = bench::element_types().at(type),
                                     .op = kOps.at(op),
                                     .algorithm = kAlgorithms.at(algorithm),
                                     .from_group = !ordinary};
  const std::vector<std::int64_t> bytes =
      sizes.empty() ? std::vector{kKib,     4 * kKib,  16 * kKib, 64 * kKib, 256 * kKib, kMib,
                                  4 * kMib, 16 * kMib, 25 * kMib, 64 * kMib, 100 * kMib}
                    : sizes;
  bench::check(bench);
  const auto wrong =
      on_ranks(std::string(name(collective)), [&](const std::shared_ptr<ProcessGroup>& group) {
        const auto say = [&](const std::string& text) {
          if (group->rank() == 0) check_output(print(stdout, text));
        };
        if (!json) say(bench::heading(bench, group->size()));
        std::vector<bench::CollectiveRow> rows;
        std::int64_t all_wrong = 0;
        bench::BenchProgress progress;
        for (const std::int64_t size : bytes) {
          if (group->rank() == 0) {
            progress.done(static_cast<int>(rows.size()), static_cast<int>(bytes.size()));
          }
          rows.push_back(bench::measure(*group, bench, size));
          all_wrong += rows.back().wrong;
          if (!json) say(bench::to_line(rows.back()));
        }
        if (json) say(bench::to_json(bench, group->size(), rows) + "\n");
        return all_wrong;
      });
  if (wrong.value_or(0) == 0) return 0;
  print(stderr, fmt::format("lockstep bench: {} elements of the results were wrong\n", *wrong));
  return 1;
}

bench::TrainingStep BenchCommand::training_step(at::Device on) const {
  return {.model = bench::find_model(model),
          .batch_size = batch_size,
          .set_to_none = set_to_none,
          .check_finite = check_finite,
          .device = on};
}

int BenchCommand::run_dp() const {
  require_no_launcher("bench dp");
  const bench::TrainingStep step = training_step(device_of(0));
  constexpr int kRounds = 5;
  const auto start = std::chrono::steady_clock::now();
  std::vector<bench::DpRow> rows = bench::dp_rows(rank_count(), step.device);
  std::vector<std::vector<bench::DpRow>> measured(rows.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto measure = [&](int) {
        choose_device(device, 0);
        bench::BenchProgress(start).done(
            round * static_cast<int>(rows.size()) + static_cast<int>(i),
            kRounds * static_cast<int>(rows.size()));
        return bench::measure_dp(step, rows[i]);
      };
      measured[i].push_back(
          spawn(1, measure,
                {.threads = rows[i].threads, .prefix = false, .status = status("dp " + model)})
              .front());
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = bench::median_of(measured[i]);
  check_output(
      print(stdout, json ? bench::to_json(step, rows) + "\n" : bench::to_table(step, rows)));
  return 0;
}

int BenchCommand::run_memory() const {
  require_no_launcher("bench memory");
  bench::TrainingStep step = training_step(device_of(0));
  if (!step.device.is_cpu()) {
    throw UsageError(
        fmt::format("--device {}: bench memory predicts the memory of CPUs only", device));
  }
  std::vector<bench::MemoryPlan> plans;
  for (const bench::OptimizerKind optimizer : optimizers) {
    for (const bench::AmpKind amp : amps) {
      step.optimizer = optimizer;
      step.amp = amp;
      const auto plan = [&](int) { return bench::plan_memory(step, rank_count()); };
      plans.push_back(spawn(1, plan, kOneThreadEach).front());
    }
  }
  const std::int64_t available = available_memory();
  check_output(print(stdout, json ? bench::to_json(step, plans, available) + "\n"
                                  : bench::to_table(step, plans, available)));
  return 0;
}

double BenchCommand::peak_mb(const bench::TrainingStep& step, bench::StepMode mode,
                             int count) const {
  const auto measure = [&](int) { return bench::measure_step_memory(join(at::kCPU), step, mode); };
  const auto peaks = spawn(count, measure, kOneThreadEach);
  return static_cast<double>(std::ranges::max(peaks)) / 1e6;
}

int BenchCommand::run_step() const {
  bench::TrainingStep step = training_step(device_of(0));
  auto rows = on_ranks("step " + model, [&](const std::shared_ptr<ProcessGroup>& group) {
    bench::BenchProgress progress;
    return bench::measure_steps(group, training_step(group->device()),
                                {.optimizers = optimizers, .amps = amps, .comm_hooks = comm_hooks},
                                [&](int done, int all) { progress.done(done, all); });
  });
  if (!rows) return 0;
  // Only processes that do nothing else show how much memory a step takes; a launcher's ranks have
  // trained already.
  if (ranks_of_launcher() == 1 && step.device.is_cpu()) {
    std::optional<double> alone;
    for (bench::StepRow& row : *rows) {
      step.optimizer = row.optimizer;
      step.amp = row.amp;
      step.comm_hook = row.comm_hook;
      row.peak_mb = row.mode == bench::StepMode::floor ? alone : peak_mb(step, row.mode, row.ranks);
      if (row.mode == bench::StepMode::single) alone = row.peak_mb;  // comes before the floor's row
    }
  }
  check_output(
      print(stdout, json ? bench::to_json(step, *rows) + "\n" : bench::to_table(step, *rows)));
  return 0;
}

}  // namespace lockstep::cli
