// SPDX-License-Identifier: BSD-3-Clause
// Writes each record as a line of JSON and as TensorBoard's scalars.
#include "tools/recipes/training_records.h"

#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/peak_memory.h"
#include "lockstep/core/system_error.h"
#include "lockstep/libtorch_compat.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

constexpr std::int64_t kStepsPerRecord = 10;

// As a killed training or a full disk leaves it.
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

TrainingRecords::TrainingRecords(const std::optional<std::filesystem::path>& metrics_file,
                                 const std::optional<std::filesystem::path>& tensorboard_folder,
                                 at::Device device)
    : device_(device) {
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

void TrainingRecords::resume_after(std::int64_t steps) {
  if (events_) events_->purge(steps + 1);
}

void TrainingRecords::start() {
  samples_ = 0;
  since_ = Clock::now();
}

void TrainingRecords::step(const StepSeen& seen) {
  if (!wanted()) return;
  samples_ += seen.samples;
  if (seen.step_of_epoch % kStepsPerRecord != 0 && seen.step_of_epoch != seen.steps_per_epoch) {
    return;
  }
  const double loss = seen.loss.item<double>();  // waits for pending work on a GPU
  const std::chrono::duration<double> time = Clock::now() - since_;
  const double rate = static_cast<double>(samples_) / time.count();
  start();
  if (metrics_) {
    Json json{{"kind", "step"},
              {"epoch", seen.epoch},
              {"step", seen.step()},
              {"loss", loss},
              {"learning_rate", seen.learning_rate},
              {"samples_per_second", rate}};
    if (const auto peak = peak_mb()) json["peak_mb"] = *peak;
    try_write_line(json.dump());
  }
  if (events_) {
    events_->add_scalar("train/loss", loss, seen.step());
    events_->add_scalar("train/learning_rate", seen.learning_rate, seen.step());
    events_->add_scalar("train/samples_per_second", rate, seen.step());
  }
}

void TrainingRecords::epoch(const EpochSeen& seen) {
  if (!wanted()) return;
  if (metrics_) {
    Json json{{"kind", "epoch"},
              {"epoch", seen.epoch},
              {"step", seen.step},
              {"loss", seen.mean_loss},
              {"seconds", seen.seconds}};
    if (seen.accuracy) json["accuracy"] = *seen.accuracy;
    try_write_line(json.dump());
  }
  if (events_) {
    events_->add_scalar("epoch/loss", seen.mean_loss, seen.step);
    if (seen.accuracy) events_->add_scalar("epoch/accuracy", *seen.accuracy, seen.step);
    events_->flush();
  }
}

void TrainingRecords::try_write_line(const std::string& line) {
  try {
    write_line(line);
  } catch (const BackendError& error) {
    metrics_error_ = error.what();
    metrics_.reset();
    libtorch::warn("train", fmt::format("{}; training goes on without it", error.what()));
  }
}

std::vector<std::string> TrainingRecords::errors() const {
  std::vector<std::string> errors{metrics_error_, events_ ? events_->error() : ""};
  std::erase(errors, "");
  return errors;
}

// In one call, so that a reader seldom sees half a line.
void TrainingRecords::write_line(const std::string& line) {
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

// The kernel takes up to a millisecond to count a process's pages.
std::optional<double> TrainingRecords::peak_mb() {
  if (peak_seen_ && Clock::now() - *peak_seen_ < std::chrono::seconds(1)) return peak_mb_;
  const auto bytes =
      device_.is_cpu() ? std::optional(peak_memory()) : libtorch::peak_memory(device_);
  peak_mb_ = bytes ? std::optional(static_cast<double>(*bytes) / 1e6) : std::nullopt;
  peak_seen_ = Clock::now();
  return peak_mb_;
}

}  // namespace lockstep
