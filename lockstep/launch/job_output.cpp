// SPDX-License-Identifier: BSD-3-Clause
// Reads the channels of ranks, and chooses where their lines go and with which prefix.
#include "lockstep/launch/job_output.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// More than a pipe holds: further output comes from a process that left its group.
constexpr int kReadsAfterEnd = 32;

constexpr std::array kStreams{OutputStream::out, OutputStream::err};

std::size_t index_of(OutputStream stream) {
  return stream == OutputStream::err ? 1 : 0;
}

void make_log_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  throw UsageError(fmt::format("cannot make the log folder {}: {}", folder, error.message()));
}

}  // namespace

JobOutput::JobOutput(const AgentOptions& options, int first_rank,
                     std::vector<std::string>& warnings)
    : options_(options),
      rank_name_(options.elastic ? "member" : "rank"),
      warnings_(warnings),
      shows_status_(options.status && !options.on_line && can_show_status(options.status->stream)) {
  if (!options.log_dir.empty()) make_log_folder(options.log_dir);
  for (int rank = 0; rank < options.ranks; ++rank) add_rank(first_rank + rank);
  if (options.on_warning) return;
  for (const std::string& warning : std::exchange(warnings_, {})) warn(warning);
}

void JobOutput::add_rank(int job_number) {
  const auto rank = static_cast<int>(ranks_.size());
  const std::string log =
      options_.log_dir.empty() ? "" : log_file(options_.log_dir, job_number, rank_name_);
  ranks_.push_back({RankOutput(job_number, make_sink(rank, job_number), log)});
}

void JobOutput::warn(const std::string& warning) {
  if (options_.on_warning) return warnings_.push_back(warning);
  console_.add(OutputStream::err, fmt::format("lockstep: warning: {}\n", warning));
}

void JobOutput::tell(const std::string& line) {
  if (options_.elastic && options_.elastic->on_event) return options_.elastic->on_event(line);
  console_.add(OutputStream::err, fmt::format("lockstep: {}\n", line));
}

bool JobOutput::on_terminal() const {
  if (options_.on_line) return false;
  const OutputStream stream = options_.merged ? options_.merged->stream : OutputStream::out;
  return ::isatty(stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

void JobOutput::leave_to_parent() {
  for (Rank& rank : ranks_) rank.output.leave_to_parent();
}

RankOutput::Sink JobOutput::make_sink(int rank, int job_number) {
  if (options_.on_line) {
    return [this](const OutputPart& part) { options_.on_line(part.line); };
  }
  if (options_.shown_ranks && std::ranges::count(*options_.shown_ranks, rank) == 0) return {};
  std::array<std::string, 2> prefixes;
  for (const OutputStream stream : kStreams) {
    std::string& prefix = prefixes[index_of(stream)];
    if (options_.merged) {
      prefix = options_.merged->prefix;
    } else if (options_.prefix) {
      prefix = rank_prefix(job_number, coloured(stream), rank_name_);
    }
  }
  return [this, rank, prefixes](const OutputPart& part) {
    const OutputStream stream = part.line.stream;
    const int writer = 2 * rank + static_cast<int>(index_of(stream));
    console_.add_part(options_.merged ? options_.merged->stream : stream, writer,
                      prefixes[index_of(stream)], part.line.text, part.ends_line);
  };
}

void JobOutput::connect(int rank, int job_number, UniqueFd output, UniqueFd error_output) {
  if (rank == static_cast<int>(ranks_.size())) add_rank(job_number);
  auto& channels = ranks_[static_cast<std::size_t>(rank)].channels;
  channels[index_of(OutputStream::out)] = std::move(output);
  channels[index_of(OutputStream::err)] = std::move(error_output);
}

void JobOutput::add_to(std::vector<pollfd>& entries) const {
  if (!console_.empty()) entries.push_back({console_.descriptor(), POLLOUT, 0});
  if (console_.full()) return;
  for (const Rank& rank : ranks_) {
    for (const UniqueFd& channel : rank.channels) {
      if (channel) entries.push_back({channel.get(), POLLIN, 0});
    }
  }
}

std::chrono::milliseconds JobOutput::sleep_time(std::chrono::milliseconds longest) const {
  if (!shows_unfinished() || console_.full()) return longest;
  for (const Rank& rank : ranks_) {
    if (const auto due = rank.output.next_unfinished()) {
      longest = std::min(longest, due->remaining());
    }
  }
  return longest;
}

void JobOutput::read() {
  for (Rank& rank : ranks_) {
    for (const OutputStream stream : kStreams) {
      if (console_.full()) return;
      if (!read_some(rank, stream) && shows_unfinished()) rank.output.pass_on_unfinished(stream);
    }
  }
}

bool JobOutput::read_some(Rank& rank, OutputStream stream) {
  UniqueFd& channel = rank.channels[index_of(stream)];
  if (!channel) return false;
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(channel.get(), bytes.data(), bytes.size());
  if (count > 0) {
    rank.output.add(stream, {bytes.data(), static_cast<std::size_t>(count)});
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    rank.output.finish(stream);
    channel.reset();
  }
  warn_of_lost_log(rank);
  return count > 0;
}

void JobOutput::warn_of_lost_log(Rank& rank) {
  if (rank.log_lost || rank.output.log_error().empty()) return;
  rank.log_lost = true;
  if (log_error_.empty()) log_error_ = rank.output.log_error();
  warn(rank.output.log_error() + "; it keeps no more of the rank's output");
}

void JobOutput::show_status(std::optional<std::string> value) {
  if (!shows_status_ || !value) return;
  const OutputStream stream = options_.status->stream;
  // The console redraws the text below each line of output: one for a wider terminal would wrap.
  const int columns = terminal_columns(stream);
  if (value == status_ && columns == status_columns_) return;
  status_ = std::move(value);
  status_columns_ = columns;
  console_.set_status(stream, options_.status->render(*status_, columns));
}

void JobOutput::hide_status() {
  if (shows_status_) console_.set_status(options_.status->stream, "");
}

void JobOutput::drain(const std::function<void()>& write_all) {
  hide_status();
  for (Rank& rank : ranks_) {
    for (const OutputStream stream : kStreams) {
      for (int i = 0; i < kReadsAfterEnd && read_some(rank, stream); ++i) {
        if (console_.full()) write_all();
      }
      rank.output.finish(stream);
    }
    warn_of_lost_log(rank);
  }
  write_all();
}

std::vector<std::string> JobOutput::last_lines(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)].output.last_lines();
}

std::string JobOutput::error() const {
  const int error = console_.error(OutputStream::out);
  return error == 0 ? log_error_
                    : fmt::format("cannot write standard output: {}", reason_of(error));
}

}  // namespace lockstep
