// SPDX-License-Identifier: BSD-3-Clause
// Writes each record as a line of JSON and as TensorBoard's scalars.
#include "tools/recipes/metrics_writer.h"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"
#include "lockstep/libtorch_compat.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

constexpr std::int64_t kStepsPerRecord = 10;

// True after a killed training or on a full disk.
bool ends_in_half_line(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
    return false;
  }
  const UniqueFd reader(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  char last = '\n';
  return reader && ::pread(reader.get(), &last, 1, status.st_size - 1) == 1 && last != '\n';
}

}  // namespace

MetricsWriter::MetricsWriter(const std::optional<std::filesystem::path>& metrics_file,
                             const std::optional<std::filesystem::path>& tensorboard_folder,
                             at::Device device)
    : peak_(device) {
  if (metrics_file) {
    metrics_file_ = *metrics_file;
    metrics_.reset(::open(metrics_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!metrics_) {
      throw UsageError(fmt::format("cannot write the metrics file {}: {}", metrics_file_.string(),
                                   reason_of(errno)));
    }
    if (ends_in_half_line(metrics_file_)) write_line("");
  }
  if (tensorboard_folder) events_.emplace(*tensorboard_folder);
}

void MetricsWriter::resume_after(std::int64_t steps) {
  if (events_) events_->purge(steps + 1);
}

void MetricsWriter::start() {
  samples_ = 0;
  since_ = Clock::now();
}

void MetricsWriter::step(const RunSteps& run, const StepSummary& step) {
  if (!wanted()) return;
  samples_ += step.samples * run.ranks;
  const std::int64_t in_epoch = run.in_epoch(step);
  if (in_epoch % kStepsPerRecord != 0 && in_epoch != run.per_epoch) return;
  const double loss = step.loss.item<double>();  // waits for pending work on a GPU
  const std::chrono::duration<double> time = Clock::now() - since_;
  const double rate = static_cast<double>(samples_) / time.count();
  const std::int64_t number = run.in_run(step);
  start();
  if (metrics_) {
    Json json{{"kind", "step"},
              {"epoch", step.epoch + 1},
              {"step", number},
              {"loss", loss},
              {"learning_rate", step.learning_rate},
              {"samples_per_second", rate}};
    if (const auto peak = peak_.megabytes()) json["peak_mb"] = *peak;
    try_write_line(json.dump());
  }
  if (events_) {
    events_->add_scalar("train/loss", loss, number);
    events_->add_scalar("train/learning_rate", step.learning_rate, number);
    events_->add_scalar("train/samples_per_second", rate, number);
  }
}

void MetricsWriter::epoch(const RunSteps& run, const EpochSummary& epoch) {
  if (!wanted()) return;
  const std::int64_t last_step = (epoch.epoch + 1) * run.per_epoch;
  if (metrics_) {
    Json json{{"kind", "epoch"},
              {"epoch", epoch.epoch + 1},
              {"step", last_step},
              {"loss", epoch.loss},
              {"seconds", epoch.seconds}};
    if (epoch.evaluation) json["accuracy"] = *epoch.evaluation;
    try_write_line(json.dump());
  }
  if (events_) {
    events_->add_scalar("epoch/loss", epoch.loss, last_step);
    if (epoch.evaluation) events_->add_scalar("epoch/accuracy", *epoch.evaluation, last_step);
    events_->flush();
  }
}

void MetricsWriter::try_write_line(const std::string& line) {
  try {
    write_line(line);
  } catch (const BackendError& error) {
    metrics_error_ = error.what();
    metrics_.reset();
    libtorch::warn("train", fmt::format("{}; training continues without it", error.what()));
  }
}

std::vector<std::string> MetricsWriter::errors() const {
  std::vector<std::string> errors{metrics_error_, events_ ? events_->error() : ""};
  std::erase(errors, "");
  return errors;
}

// In one call, so that a reader seldom sees half a line.
void MetricsWriter::write_line(const std::string& line) {
  const std::string whole = line + '\n';
  std::string_view rest = whole;
  while (!rest.empty()) {
    const ssize_t count = ::write(metrics_.get(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw BackendError(fmt::format("cannot write the metrics file {}: {}", metrics_file_.string(),
                                     reason_of(errno)));
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep
