// SPDX-License-Identifier: BSD-3-Clause
// Fills the page of a training run with tables and data.
#include "tools/report/training_report.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/page.h"

namespace lockstep {
namespace {

// The spans of a step, and their names on the page.
struct StepPart {
  const char* span;
  const char* name;
};
constexpr std::array kStepParts{
    StepPart{"forward", "forward"},      StepPart{"backward", "backward"},
    StepPart{"launch bucket", "launch"}, StepPart{"wait", "wait"},
    StepPart{"optimizer", "optimizer"},  StepPart{"data", "data"}};

std::string plural(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Returns the milliseconds of a mean step: each of kStepParts, and the rest.
std::vector<double> milliseconds_of_step(const RankCourse& course) {
  const double steps = static_cast<double>(std::max<std::int64_t>(course.steps, 1));
  std::vector<double> parts;
  double rest = course.seconds;
  for (const StepPart& part : kStepParts) {
    const auto found = course.seconds_in.find(part.span);
    const double seconds = found == course.seconds_in.end() ? 0 : found->second;
    rest -= seconds;
    parts.push_back(seconds * 1e3 / steps);
  }
  parts.push_back(std::max(rest, 0.0) * 1e3 / steps);
  return parts;
}

std::optional<double> last_peak(const RankCourse& course) {
  return course.points.empty() ? std::nullopt : course.points.back().peak_mb;
}

std::string megabytes_or_unknown(std::optional<double> number) {
  return number ? fmt::format("{:.0f}", *number) : "?";
}

// Returns "none" without steps to measure, as after resuming a completed training run.
std::string figure(double number, int digits, bool is_measured) {
  return is_measured ? fmt::format("{:.{}f}", number, digits) : "none";
}

// Returns the share of the time of the gradients' reductions in which the rank did not wait.
std::string hidden_share(const RankCourse& course) {
  if (course.seconds_in_flight <= 0) return "none";
  return fmt::format("{:.0f} %",
                     100 * (1 - course.seconds_waited_in_flight / course.seconds_in_flight));
}

std::vector<Cells> result_cells(const TrainResult& result) {
  const bool has_trained = result.seconds_per_epoch > 0;
  std::vector<Cells> lines{
      {"final loss", "s/epoch", "samples/s", "peak MB"},
      {figure(result.loss, 4, has_trained), figure(result.seconds_per_epoch, 3, has_trained),
       figure(result.samples_per_second, 0, has_trained), megabytes_or_unknown(result.peak_mb)}};
  const auto add = [&](const char* name, const std::string& cell) {
    lines[0].emplace_back(name);
    lines[1].push_back(cell);
  };
  if (result.accuracy) add("accuracy", fmt::format("{:.2f} %", *result.accuracy * 100));
  if (result.weight) add("weight", fmt::format("{:.4f}", *result.weight));
  if (result.bias) add("bias", fmt::format("{:.4f}", *result.bias));
  return lines;
}

std::vector<Cells> rank_cells(const std::vector<RankCourse>& ranks) {
  Cells names{"rank", "samples/s", "a step"};
  for (const StepPart& part : kStepParts) names.emplace_back(part.name);
  names.insert(names.end(), {"other", "hidden", "peak MB"});
  std::vector<Cells> lines{names};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankCourse& course = ranks[rank];
    const auto steps = static_cast<double>(course.steps);
    const bool has_trained = course.steps > 0;
    Cells cells{std::to_string(rank),
                figure(static_cast<double>(course.samples) / course.seconds, 0, has_trained),
                figure(course.seconds * 1e3 / steps, 3, has_trained)};
    for (const double part : milliseconds_of_step(course)) {
      cells.push_back(figure(part, 3, has_trained));
    }
    cells.push_back(hidden_share(course));
    cells.push_back(megabytes_or_unknown(last_peak(course)));
    lines.push_back(std::move(cells));
  }
  return lines;
}

std::string course_data(const std::vector<RankCourse>& ranks) {
  Json json{{"parts", Json::array()}, {"ranks", Json::array()}};
  for (const StepPart& part : kStepParts) json["parts"].push_back(part.name);
  json["parts"].push_back("other");
  for (const RankCourse& course : ranks) {
    Json points = Json::array();
    for (const CoursePoint& point : course.points) {
      points.push_back({{"epoch", point.epoch},
                        {"loss", point.loss},
                        {"learning_rate", point.learning_rate},
                        {"samples_per_second", point.samples_per_second},
                        {"peak_mb", point.peak_mb ? Json(*point.peak_mb) : Json(nullptr)}});
    }
    json["ranks"].push_back(
        {{"milliseconds", milliseconds_of_step(course)}, {"points", std::move(points)}});
  }
  json["evaluations"] = Json::array();
  for (const EvaluationPoint& point : ranks.front().evaluations) {
    json["evaluations"].push_back(
        {{"epoch", point.epoch}, {"loss", point.loss}, {"accuracy", point.accuracy}});
  }
  return json.dump();
}

// Names the rank that waits least, and what it does while the others wait for it.
std::string straggler_note(const std::vector<RankCourse>& ranks) {
  constexpr double kWorthNaming = 0.05;  // of a step
  if (ranks.size() < 2 || ranks.front().steps == 0) return "";
  std::vector<std::vector<double>> parts;
  for (const RankCourse& course : ranks) parts.push_back(milliseconds_of_step(course));
  const auto milliseconds = [&](std::size_t rank, std::string_view name) {
    const auto part = std::ranges::find(kStepParts, name, &StepPart::name);
    return parts[rank][static_cast<std::size_t>(part - kStepParts.begin())];
  };
  const auto waits = [&](std::size_t rank) { return milliseconds(rank, "wait"); };
  std::size_t last = 0;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (waits(rank) < waits(last)) last = rank;
  }
  const auto more_than_others = [&](const auto& time_on) {
    double others = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank != last) others += time_on(rank);
    }
    return time_on(last) - others / static_cast<double>(ranks.size() - 1);
  };
  const double computing = more_than_others([&](std::size_t rank) {
    return milliseconds(rank, "forward") + milliseconds(rank, "backward");
  });
  const double data =
      more_than_others([&](std::size_t rank) { return milliseconds(rank, "data"); });
  const double step = ranks[last].seconds * 1e3 / static_cast<double>(ranks[last].steps);
  if (std::max(computing, data) > kWorthNaming * step) {
    return fmt::format(" The others wait for rank {}, which takes {:.3f} ms longer in a step {}.",
                       last, std::max(computing, data),
                       computing > data ? "to compute" : "to get its data");
  }
  if (waits(last) > kWorthNaming * step) {
    return fmt::format(
        " No rank holds up the others: each waits {:.3f} ms in a step, or longer, "
        "for the network or the memory between them.",
        waits(last));
  }
  return " No rank holds up the others.";
}

// What the speeds of the ranks say about them: nothing about waiting, if they waited for cores.
std::string speed_note(const TrainResult& result, const std::vector<RankCourse>& ranks) {
  const std::string note = overload(result.core_wait);
  if (!note.empty()) {
    return note +
           " The parts of a step include waiting for a core, so that they do not show which rank "
           "the others waited for.";
  }
  return "Ranks that take part in the same steps have the same speed. The one that the others wait "
         "for is the one that waits least itself." +
         straggler_note(ranks);
}

std::string training_title(const TrainResult& result) {
  const int replicas = result.replicas;
  return fmt::format("{}: {} with {}", result.recipe, result.mode,
                     replicas > 1 ? plural(replicas, "replica") : plural(result.ranks, "rank"));
}

std::string training_summary(const TrainResult& result) {
  return fmt::format("{}, seed {}, learning rate {:g}, batches of {}, {} in all, {} on each rank",
                     plural(result.epochs, "epoch"), result.seed, result.learning_rate,
                     result.batch_size, result.global_batch_size, plural(result.threads, "thread"));
}

}  // namespace

std::string to_html(const TrainResult& result, const std::vector<RankCourse>& ranks,
                    const std::string& command, const std::string& chart_library) {
  if (ranks.empty()) throw UsageError("a report needs at least one rank");
  const bool on_gpu = result.device != "cpu";
  return filled(
      training_page,
      {{"TITLE", escaped(training_title(result))},
       {"SUMMARY", escaped(training_summary(result))},
       {"RESULT", html_table(result_cells(result))},
       {"RANKS", html_table(rank_cells(ranks))},
       {"SPEED", escaped(speed_note(result, ranks))},
       // A bar for each rank, the axis and the legend.
       {"BARS_HEIGHT", fmt::format("{:.1f}", 7 + 2.5 * static_cast<double>(ranks.size()))},
       {"ON_GPU",
        on_gpu ? " On a GPU, times are measured on the host, which starts the GPU's work." : ""},
       {"HOW", how_it_was_made(command, result.device,
                               fmt::format("{} of {}", plural(result.ranks, "rank"),
                                           plural(result.threads, "thread")))},
       {"DATA", inside_script(course_data(ranks))},
       {"CHART_LIBRARY", inside_script(chart_library)}});
}

}  // namespace lockstep
