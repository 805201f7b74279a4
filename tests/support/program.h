// SPDX-License-Identifier: BSD-3-Clause
// Runs a program as its user would, and collects what it says.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep::testing {

// A child process with its output in pipes, or its standard output on a terminal. It has 100 s to
// end; a wait after that fails with an exception, and the process is killed.
class Program {
 public:
  // full: as pipes, but its standard output can take nothing before somebody reads.
  enum class Output { pipes, full, terminal };

  explicit Program(const std::vector<std::string>& arguments, Output output = Output::pipes);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;

  // Until its standard output holds the text, with so many occurrences of it.
  void wait_for(const std::string& text, int times = 1);
  // Until it has ended and all its output is closed. As a shell would give it: 128 + signal.
  int wait();
  // Until it has ended, though nobody reads meanwhile.
  int wait_unread();
  // The same as wait(), but it is nudged by a signal every 20 ms.
  int wait_signalling(int signal);
  // Its terminal gets another width, as when a user resizes a window.
  void resize(int columns) const;
  // The reader of its standard output goes away.
  void close_output();

  // What it wrote so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  // Until both streams are closed.
  void read_all();
  // Reads what comes within the span.
  void read_for(std::chrono::milliseconds span);
  static void read_from(int& fd, std::string& text);
  void check_deadline();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
  std::chrono::steady_clock::time_point deadline_;
};

// How a program ended, and what it wrote.
struct Ended {
  int code;
  std::string out;
  std::string err;
};
Ended run_to_end(const std::vector<std::string>& command);

// How often the text holds the part.
int occurrences(const std::string& text, const std::string& part);

// The lines, sorted: ranks write in any order.
std::vector<std::string> sorted_lines(const std::string& text);

// The text without the warning of more ranks than cores, which depends on the machine.
std::string without_oversubscription_warning(const std::string& text);

}  // namespace lockstep::testing
