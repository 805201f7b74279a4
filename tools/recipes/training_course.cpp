// SPDX-License-Identifier: BSD-3-Clause
// Takes points at equal numbers of steps, and gathers the points of all ranks as JSON.
#include "tools/recipes/training_course.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "lockstep/comm/objects.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

// A chart cannot show more points.
constexpr std::int64_t kPoints = 200;

Json as_json(const RankCourse& course) {
  Json json{{"steps", course.steps},
            {"samples", course.samples},
            {"seconds", course.seconds},
            {"seconds_in", course.seconds_in},
            {"seconds_in_flight", course.seconds_in_flight},
            {"seconds_waited_in_flight", course.seconds_waited_in_flight},
            {"points", Json::array()},
            {"evaluations", Json::array()}};
  for (const CoursePoint& point : course.points) {
    json["points"].push_back({point.step, point.epoch, point.loss, point.learning_rate,
                              point.samples_per_second,
                              point.peak_mb ? Json(*point.peak_mb) : Json(nullptr)});
  }
  for (const EvaluationPoint& point : course.evaluations) {
    json["evaluations"].push_back({point.epoch, point.loss, point.accuracy});
  }
  return json;
}

RankCourse course_from(const Json& json) {
  RankCourse course{.steps = json.at("steps"),
                    .samples = json.at("samples"),
                    .seconds = json.at("seconds"),
                    .seconds_in = json.at("seconds_in"),
                    .seconds_in_flight = json.at("seconds_in_flight"),
                    .seconds_waited_in_flight = json.at("seconds_waited_in_flight")};
  for (const Json& point : json.at("points")) {
    course.points.push_back(
        {.step = point[0],
         .epoch = point[1],
         .loss = point[2],
         .learning_rate = point[3],
         .samples_per_second = point[4],
         .peak_mb = point[5].is_null() ? std::nullopt : std::optional(point[5].get<double>())});
  }
  for (const Json& point : json.at("evaluations")) {
    course.evaluations.push_back({.epoch = point[0], .loss = point[1], .accuracy = point[2]});
  }
  return course;
}

}  // namespace

CourseRecorder::CourseRecorder(ProcessGroup& group) : group_(group), peak_(group.device()) {
  if (SpanRecorder::active() == nullptr) recorder_.emplace(/*capacity=*/0);
}

CourseRecorder::Totals CourseRecorder::totals() {
  Totals seconds;
  const SpanRecorder* recorder = SpanRecorder::active();
  if (recorder == nullptr) return seconds;
  for (const auto& [name, nanoseconds] : recorder->totals()) {
    seconds[name] = static_cast<double>(nanoseconds) / 1e9;
  }
  return seconds;
}

ReductionTimes CourseRecorder::reductions() {
  const SpanRecorder* recorder = SpanRecorder::active();
  return recorder == nullptr ? ReductionTimes() : recorder->reductions();
}

void CourseRecorder::begin_epoch() {
  totals_before_ = totals();
  reductions_before_ = reductions();
  epoch_began_ = since_ = Clock::now();
}

void CourseRecorder::step(const RunSteps& run, const StepSummary& step) {
  losses_ = losses_.defined() ? losses_.add_(step.loss) : step.loss.to(at::kDouble, false, true);
  samples_ += step.samples;
  course_.samples += step.samples;
  ++steps_;
  ++course_.steps;
  // Points divide all steps evenly, whatever the length of an epoch.
  const std::int64_t points = std::min(kPoints, run.all());
  const auto points_until = [&](std::int64_t number) { return number * points / run.all(); };
  const std::int64_t number = run.in_run(step);
  if (points_until(number) > points_until(number - 1)) add_point(run, step);
}

void CourseRecorder::add_point(const RunSteps& run, const StepSummary& step) {
  const double loss = losses_.item<double>() / static_cast<double>(steps_);  // waits for a GPU
  const auto now = Clock::now();
  seconds_ += std::chrono::duration<double>(now - since_).count();
  const std::int64_t number = run.in_run(step);
  course_.points.push_back(
      {.step = number,
       .epoch = static_cast<double>(number) / static_cast<double>(run.per_epoch),
       .loss = loss,
       .learning_rate = step.learning_rate,
       .samples_per_second = static_cast<double>(samples_) / seconds_,
       .peak_mb = peak_.megabytes()});
  losses_.reset();
  seconds_ = 0;
  samples_ = 0;
  steps_ = 0;
  since_ = Clock::now();
}

void CourseRecorder::end_epoch() {
  const auto now = Clock::now();
  seconds_ += std::chrono::duration<double>(now - since_).count();
  course_.seconds += std::chrono::duration<double>(now - epoch_began_).count();
  for (const auto& [name, seconds] : totals()) {
    course_.seconds_in[name] += seconds - totals_before_[name];
  }
  const auto [in_flight, waited] = reductions();
  course_.seconds_in_flight += static_cast<double>(in_flight - reductions_before_.in_flight) / 1e9;
  course_.seconds_waited_in_flight += static_cast<double>(waited - reductions_before_.waited) / 1e9;
}

std::vector<RankCourse> CourseRecorder::of_all_ranks() const {
  std::vector<RankCourse> courses;
  for (const Json& course : all_gather_object(as_json(course_), group_)) {
    courses.push_back(course_from(course));
  }
  return courses;
}

}  // namespace lockstep
