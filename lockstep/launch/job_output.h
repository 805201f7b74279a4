// SPDX-License-Identifier: BSD-3-Clause
// The output of a launch: reads what ranks print, and passes it on to the console or the caller's
// function, the log files and the report; shows warnings and the status line.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/agent_options.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/rank_output.h"

namespace lockstep {

// For an event loop; never blocks.
class JobOutput {
 public:
  // Opens the log files. `first_rank` is the job's number of this machine's first rank. Adds its
  // warnings to `warnings` if options.on_warning is set. Otherwise it prints those in `warnings`
  // and its own. UsageError if the log folder cannot be made, BackendError if a log file cannot be
  // opened.
  JobOutput(const AgentOptions& options, int first_rank, std::vector<std::string>& warnings);
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  void warn(const std::string& warning);
  // Prints a line about an elastic job, or passes it on.
  void tell(const std::string& line);
  // Whether the ranks' output appears on a terminal.
  bool on_terminal() const;
  // Closes this process's copies of the log files. Call it in a forked child.
  void leave_to_parent();

  // Takes over the read ends of the rank's streams. `rank` is its number on this machine, as in all
  // functions here. A further rank follows those that are there, with this number in the job.
  void connect(int rank, int job_number, UniqueFd output, UniqueFd error_output);
  // Adds the descriptors that the event loop waits for.
  void add_to(std::vector<pollfd>& entries) const;
  // How long the event loop may sleep until the beginning of a line is shown, at most `longest`.
  std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const;
  // Reads what ranks have written, unless a slow reader has left too much in the console.
  void read();

  // Renders the status line again if the value or the terminal's width has changed. `value` is the
  // value of options.status's key; nullopt if there is none yet.
  bool shows_status() const { return shows_status_; }
  void show_status(std::optional<std::string> value);
  void hide_status();

  // Writes as much as possible without blocking. False once the reader has gone away.
  bool write_some() { return console_.write_some(); }
  bool all_written() const { return console_.empty(); }
  void discard() { console_.discard(); }
  // The descriptor that must become writable before more can be written. Call it only if not
  // all_written().
  int descriptor() const { return console_.descriptor(); }

  // Reads the rest after the ranks' end. Calls write_all() when the console is full, and at the
  // end.
  void drain(const std::function<void()>& write_all);

  std::vector<std::string> last_lines(int rank) const;
  // AgentResult::output_error.
  std::string error() const;

 private:
  struct Rank {
    RankOutput output;
    // The non-blocking read ends of its standard output and error.
    std::array<UniqueFd, 2> channels{};
    bool log_lost = false;
  };

  void add_rank(int job_number);
  RankOutput::Sink make_sink(int rank, int job_number);
  // Whether the beginning of a line is shown before the rank has ended the line.
  bool shows_unfinished() const { return !options_.on_line && !shows_status_; }
  // False if there was nothing to read.
  bool read_some(Rank& rank, OutputStream stream);
  void warn_of_lost_log(Rank& rank);

  const AgentOptions& options_;
  // Members of an elastic job keep their numbers, and have no fixed rank.
  const char* const rank_name_;
  std::vector<std::string>& warnings_;
  const bool shows_status_;
  Console console_;
  std::vector<Rank> ranks_;
  std::string log_error_;
  // The last value of the status, and the width for which it was rendered.
  std::optional<std::string> status_;
  int status_columns_ = 0;
};

}  // namespace lockstep
