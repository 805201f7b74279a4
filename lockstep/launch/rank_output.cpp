// SPDX-License-Identifier: BSD-3-Clause
// Cuts a rank's output into lines, remembers the last ones, and writes the log file.
#include "lockstep/launch/rank_output.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {

RankOutput::RankOutput(int rank, LineSink sink, const std::string& log_file)
    : rank_(rank), sink_(std::move(sink)), log_file_(log_file) {
  if (log_file.empty()) return;
  log_.reset(::open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log_) {
    throw BackendError(fmt::format("cannot write the log file {}: {}", log_file, reason_of(errno)));
  }
}

void RankOutput::add(OutputStream stream, std::string_view bytes) {
  std::string& rest = partial(stream);
  while (true) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) break;
    if (rest.empty()) {
      emit(stream, bytes.substr(0, end));
    } else {
      rest += bytes.substr(0, end);
      finish(stream);
    }
    bytes.remove_prefix(end + 1);
  }
  rest += bytes;
  if (rest.size() >= kLongestLine) finish(stream);
}

void RankOutput::finish(OutputStream stream) {
  std::string& rest = partial(stream);
  if (rest.empty()) return;
  const std::string line = std::exchange(rest, {});
  emit(stream, line);
}

void RankOutput::emit(OutputStream stream, std::string_view line) {
  if (!traces_[stream == OutputStream::err].is_trace(line)) {
    last_lines_.emplace_back(line.substr(0, kRememberedLineBytes));
  }
  if (last_lines_.size() > kRememberedLines) last_lines_.pop_front();
  if (log_) write_log(line);
  if (sink_) sink_({rank_, stream, line});
}

// A full disk costs the log, not the run.
void RankOutput::write_log(std::string_view line) {
  const std::string whole = std::string(line) + '\n';
  for (std::size_t written = 0; written < whole.size();) {
    const ssize_t count = ::write(log_.get(), whole.data() + written, whole.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      log_error_ = fmt::format("cannot write the log file {}: {}", log_file_, reason_of(errno));
      log_.reset();
      return;
    }
    written += static_cast<std::size_t>(count);
  }
}

std::string rank_prefix(int rank, bool coloured) {
  if (!coloured) return fmt::format("[rank {}] ", rank);
  // Cyan, green, yellow, magenta, blue, white; not red, which means errors.
  constexpr std::array kColours{36, 32, 33, 35, 34, 37};
  return fmt::format("\033[{}m[rank {}]\033[0m ",
                     kColours[static_cast<std::size_t>(rank) % kColours.size()], rank);
}

std::string log_file(const std::string& folder, int rank) {
  return fmt::format("{}/rank_{}.log", folder, rank);
}

}  // namespace lockstep
