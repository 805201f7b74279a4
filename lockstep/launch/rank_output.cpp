// SPDX-License-Identifier: BSD-3-Clause
// Cuts a rank's output into lines and parts of lines, remembers the last lines, and writes the log
// file.
#include "lockstep/launch/rank_output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// Enough for any line that a filter must see whole.
constexpr std::size_t kVisibleBytes = 16384;

}  // namespace

RankOutput::RankOutput(int rank, Sink sink, const std::string& log_file)
    : rank_(rank), sink_(std::move(sink)), log_file_(log_file) {
  if (log_file.empty()) return;
  log_.reset(::open(log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log_) {
    throw BackendError(fmt::format("cannot write the log file {}: {}", log_file, reason_of(errno)));
  }
}

void RankOutput::add(OutputStream stream, std::string_view bytes) {
  Line& unfinished = line(stream);
  while (true) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) break;
    if (unfinished.held.empty()) {
      pass_on(stream, bytes.substr(0, end), /*ends_line=*/true);
    } else {
      unfinished.held += bytes.substr(0, end);
      pass_on(stream, std::exchange(unfinished.held, {}), /*ends_line=*/true);
    }
    bytes.remove_prefix(end + 1);
  }
  if (bytes.empty()) return;
  if (unfinished.held.empty()) unfinished.pass_on_at = Deadline::after(kUnfinishedLineDelay);
  unfinished.held += bytes;
  if (unfinished.held.size() >= kLongestLine) finish(stream);
}

void RankOutput::finish(OutputStream stream) {
  Line& unfinished = line(stream);
  if (unfinished.held.empty() && !unfinished.begun) return;
  pass_on(stream, std::exchange(unfinished.held, {}), /*ends_line=*/true);
}

void RankOutput::pass_on_unfinished(OutputStream stream) {
  Line& unfinished = line(stream);
  if (!unfinished.pass_on_at || !unfinished.pass_on_at->passed()) return;
  pass_on(stream, std::exchange(unfinished.held, {}), /*ends_line=*/false);
}

std::optional<Deadline> RankOutput::next_unfinished() const {
  std::optional<Deadline> next;
  for (const Line& one : lines_) {
    if (!one.pass_on_at) continue;
    if (!next || one.pass_on_at->remaining() < next->remaining()) next = one.pass_on_at;
  }
  return next;
}

void RankOutput::pass_on(OutputStream stream, std::string_view text, bool ends_line) {
  Line& passed = line(stream);
  passed.pass_on_at.reset();
  passed.begun = !ends_line;
  remember(passed, text, ends_line);
  if (log_) write_log(log_lines_.add(static_cast<int>(stream), "", text, ends_line));
  if (sink_) sink_({{rank_, stream, text}, ends_line});
}

void RankOutput::remember(Line& line, std::string_view text, bool ends_line) {
  while (!text.empty()) {
    const std::string_view drawn = text.substr(0, text.find('\r'));
    if (!drawn.empty() && std::exchange(line.returned, false)) line.visible.clear();
    line.visible += drawn.substr(0, kVisibleBytes - std::min(kVisibleBytes, line.visible.size()));
    text.remove_prefix(drawn.size());
    if (text.empty()) break;
    line.returned = true;
    text.remove_prefix(1);
  }
  if (!ends_line) return;
  const std::string whole = std::exchange(line.visible, {});
  line.returned = false;
  if (!line.traces.is_trace(whole)) last_lines_.push_back(whole.substr(0, kRememberedLineBytes));
  if (last_lines_.size() > kRememberedLines) last_lines_.pop_front();
}

// A full disk costs the log, not the run.
void RankOutput::write_log(std::string_view bytes) {
  for (std::size_t written = 0; written < bytes.size();) {
    const ssize_t count = ::write(log_.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      log_error_ = fmt::format("cannot write the log file {}: {}", log_file_, reason_of(errno));
      log_.reset();
      return;
    }
    written += static_cast<std::size_t>(count);
  }
}

std::string rank_prefix(int rank, bool coloured, const char* name) {
  if (!coloured) return fmt::format("[{} {}] ", name, rank);
  // Cyan, green, yellow, magenta, blue, white; not red, which means errors.
  constexpr std::array kColours{36, 32, 33, 35, 34, 37};
  return fmt::format("\033[{}m[{} {}]\033[0m ",
                     kColours[static_cast<std::size_t>(rank) % kColours.size()], name, rank);
}

std::string log_file(const std::string& folder, int rank, const char* name) {
  return fmt::format("{}/{}_{}.log", folder, name, rank);
}

}  // namespace lockstep
