// SPDX-License-Identifier: BSD-3-Clause
// Passes progress through the launcher's store; makes tables and JSON objects.
#include "tools/bench/bench_output.h"

#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/train/progress_bar.h"
#include "tools/bench/known_elements.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/text_table.h"

namespace lockstep::bench {
namespace {

constexpr const char* kBenchProgressKey = "bench/progress";

std::string title(const CollectiveBench& bench, int ranks) {
  std::string title =
      fmt::format("{} of {}", lockstep::name(bench.collective), name_of(bench.type));
  if (reduces(bench.collective)) title += fmt::format(", {}", lockstep::name(bench.op));
  if (bench.algorithm == Algorithm::ring) title += ", ring";
  return title + fmt::format(", {} rank{}, {}", ranks, ranks == 1 ? "" : "s",
                             bench.from_group ? "tensors of the group" : "ordinary tensors");
}

std::string title(const TrainingStep& step) {
  const std::string line = fmt::format(
      "{}: {}; batches of {} on {}, gradients {}{}", step.model.name, step.model.summary,
      step.samples(), step.device.str(), step.set_to_none ? "reset to none" : "zeroed in place",
      step.check_finite ? " and checked to be finite" : "");
  return wrapped(line, 0) + "\n";
}

Json shared_fields(const TrainingStep& step) {
  return {{"schema_version", kSchemaVersion},
          {"versions", versions_json()},
          {"batch_size", step.samples()},
          {"device", step.device.str()},
          {"set_to_none", step.set_to_none},
          {"check_finite", step.check_finite},
          {"rows", Json::array()}};
}

}  // namespace

StatusLine bench_status(OutputStream stream, const std::string& what) {
  return {.stream = stream,
          .key = kBenchProgressKey,
          .render = [=](const std::string& value, int columns) {
            std::istringstream words(value);
            int measured = 0;
            int all = 0;
            if (!(words >> measured >> all)) return std::string();
            std::optional<double> seconds_left;
            if (double left = 0; words >> left) seconds_left = left;
            return count_bar(what, measured, all, seconds_left, columns, coloured(stream));
          }};
}

BenchProgress::BenchProgress(std::chrono::steady_clock::time_point start) : start_(start) {
  const auto path = environment("LOCKSTEP_STORE");
  if (path && is_rank()) {
    store_ = std::make_unique<LocalStore>(*path, StoreUser{.patience = std::chrono::seconds(1)});
  }
}

void BenchProgress::done(int measured, int all) {
  if (!store_) return;
  std::string state = fmt::format("{} {}", measured, all);
  if (measured > 0) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    state += fmt::format(" {}", elapsed.count() / measured * (all - measured));
  }
  try {
    store_->set(kBenchProgressKey, state);
  } catch (const Error&) {
    store_.reset();  // the measurement does not need its bar
  }
}

std::string heading(const CollectiveBench& bench, int ranks) {
  return fmt::format("{}\n{:>12}{:>13}{:>13}{:>12}{:>12}{:>8}{:>10}\n", title(bench, ranks),
                     "bytes", "min us", "median us", "algbw GB/s", "busbw GB/s", "#wrong",
                     "of bound");
}

std::string to_line(const CollectiveRow& row) {
  return fmt::format("{:>12}{:>13.2f}{:>13.2f}{:>12.3f}{:>12.3f}{:>8}{:>10}\n", row.bytes,
                     row.time_us_min, row.time_us_median, row.algbw_gb_s, row.busbw_gb_s, row.wrong,
                     row.percent_of_bound ? fmt::format("{:.0f} %", *row.percent_of_bound) : "-");
}

std::string to_json(const CollectiveBench& bench, int ranks,
                    const std::vector<CollectiveRow>& rows) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"collective", lockstep::name(bench.collective)},
            {"dtype", name_of(bench.type)},
            {"op", reduces(bench.collective) ? Json(lockstep::name(bench.op)) : Json(nullptr)},
            {"algorithm", lockstep::name(bench.algorithm)},
            {"ordinary", !bench.from_group},
            {"ranks", ranks},
            {"rows", Json::array()}};
  for (const CollectiveRow& row : rows) {
    json["rows"].push_back(
        {{"bytes", row.bytes},
         {"time_us_min", row.time_us_min},
         {"time_us_median", row.time_us_median},
         {"algbw_gb_s", row.algbw_gb_s},
         {"busbw_gb_s", row.busbw_gb_s},
         {"wrong", row.wrong},
         {"percent_of_bound", row.percent_of_bound ? Json(*row.percent_of_bound) : Json(nullptr)}});
  }
  return json.dump();
}

std::string to_table(const TrainingStep& step, const StepRows& rows) {
  std::vector<Cells> lines{{"optimizer", "amp", "mode", "comm hook", "ranks", "p10 us", "median us",
                            "p90 us", "over floor us", "over floor", "peak MB"}};
  double floor = 0;
  for (const StepRow& row : rows) {
    if (row.mode == StepMode::floor) floor = row.us_median;  // comes before DDP's row
    const bool compared = row.mode == StepMode::ddp;
    lines.push_back({std::string(name(row.optimizer)), std::string(name(row.amp)),
                     std::string(name(row.mode)), std::string(name(row.comm_hook)),
                     std::to_string(row.ranks), fmt::format("{:.1f}", row.us_p10),
                     fmt::format("{:.1f}", row.us_median), fmt::format("{:.1f}", row.us_p90),
                     compared ? fmt::format("{:+.1f}", row.us_median - floor) : "",
                     compared ? fmt::format("{:+.1f} %", (row.us_median / floor - 1) * 100) : "",
                     row.peak_mb ? fmt::format("{:.0f}", *row.peak_mb) : "-"});
  }
  return title(step) + align_columns(lines);
}

std::string to_json(const TrainingStep& step, const StepRows& rows) {
  Json json = shared_fields(step);
  for (const StepRow& row : rows) {
    Json fields{
        {"model", step.model.name}, {"optimizer", name(row.optimizer)}, {"amp", name(row.amp)},
        {"mode", name(row.mode)},   {"comm_hook", name(row.comm_hook)}, {"ranks", row.ranks},
        {"us_p10", row.us_p10},     {"us_median", row.us_median},       {"us_p90", row.us_p90}};
    if (row.peak_mb) fields["peak_mb"] = *row.peak_mb;
    json["rows"].push_back(std::move(fields));
  }
  return json.dump();
}

std::string to_table(const TrainingStep& step, const std::vector<DpRow>& rows) {
  std::vector<Cells> lines{
      {"mode", "replicas", "threads", "p10 us", "median us", "p90 us", "speedup"}};
  for (const DpRow& row : rows) {
    lines.push_back({std::string(name(row.mode)), std::to_string(row.replicas),
                     std::to_string(row.threads), fmt::format("{:.1f}", row.us_p10),
                     fmt::format("{:.1f}", row.us_median), fmt::format("{:.1f}", row.us_p90),
                     fmt::format("{:.2f}", rows.front().us_median / row.us_median)});
  }
  return title(step) + align_columns(lines);
}

std::string to_json(const TrainingStep& step, const std::vector<DpRow>& rows) {
  Json json = shared_fields(step);
  for (const DpRow& row : rows) {
    json["rows"].push_back({{"model", step.model.name},
                            {"mode", name(row.mode)},
                            {"replicas", row.replicas},
                            {"threads", row.threads},
                            {"us_p10", row.us_p10},
                            {"us_median", row.us_median},
                            {"us_p90", row.us_p90}});
  }
  return json.dump();
}

std::string to_table(const TrainingStep& step, const std::vector<MemoryPlan>& plans,
                     std::int64_t available) {
  const auto megabytes = [](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
  };
  std::vector<Cells> lines{{"optimizer", "amp", "ranks", "process MB", "parameters MB",
                            "gradients MB", "state MB", "activations MB", "kept MB", "rank MB",
                            "all MB"}};
  for (const MemoryPlan& plan : plans) {
    lines.push_back({std::string(name(plan.optimizer)), std::string(name(plan.amp)),
                     std::to_string(plan.ranks), megabytes(plan.process),
                     megabytes(plan.parameters), megabytes(plan.gradients), megabytes(plan.state),
                     megabytes(plan.activations), megabytes(plan.kept), megabytes(plan.of_rank()),
                     megabytes(plan.of_all())});
  }
  return title(step) + align_columns(lines) +
         fmt::format("This machine has {} MB left.\n", megabytes(available));
}

std::string to_json(const TrainingStep& step, const std::vector<MemoryPlan>& plans,
                    std::int64_t available) {
  const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  Json json = shared_fields(step);
  json["available_mb"] = megabytes(available);
  for (const MemoryPlan& plan : plans) {
    json["rows"].push_back({{"model", step.model.name},
                            {"optimizer", name(plan.optimizer)},
                            {"amp", name(plan.amp)},
                            {"ranks", plan.ranks},
                            {"process_mb", megabytes(plan.process)},
                            {"parameters_mb", megabytes(plan.parameters)},
                            {"gradients_mb", megabytes(plan.gradients)},
                            {"state_mb", megabytes(plan.state)},
                            {"activations_mb", megabytes(plan.activations)},
                            {"kept_mb", megabytes(plan.kept)},
                            {"rank_mb", megabytes(plan.of_rank())},
                            {"all_mb", megabytes(plan.of_all())}});
  }
  return json.dump();
}

}  // namespace lockstep::bench
