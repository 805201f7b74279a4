// SPDX-License-Identifier: BSD-3-Clause
// Writes the launcher's own standard output and error without ever blocking its loop.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "lockstep/launch/rank_reports.h"

namespace lockstep {

// How long a program waits at its end for a reader of its output.
constexpr std::chrono::milliseconds kReaderGrace{500};

// Puts the lines of several writers into one text. A line may come in parts; another writer's part
// ends it early, and its rest begins a new line.
class LineMixer {
 public:
  // The bytes to write for a part. `prefix` begins each line. It is repeated after a carriage
  // return, from where programs redraw their line.
  std::string add(int writer, std::string_view prefix, std::string_view part, bool ends_line);
  // The bytes that end an unfinished line; empty if there is none.
  std::string end_line();

 private:
  static constexpr int kNone = -1;

  // The writer of the unfinished line, whether it has its prefix yet, and whether the next text
  // needs one.
  int writer_ = kNone;
  bool has_prefix_ = false;
  bool needs_prefix_ = false;
};

// Queues texts for both streams together, so that they stay whole and in order if both streams go
// to the same terminal or file. On a terminal, a status line can stay below all text: it is erased
// before further text and drawn again after it, in the same write if both are short.
class Console {
 public:
  Console();

  // Whole lines.
  void add(OutputStream stream, const std::string& text);
  // A part of a writer's line, as LineMixer takes it. Each writer has its own number. While there
  // is a status line, only whole lines.
  void add_part(OutputStream stream, int writer, std::string_view prefix, std::string_view part,
                bool ends_line);

  // Replaces the status line, which must fit into the terminal's width; empty text removes it. Call
  // it only for a stream that can_show_status(). Drawn by write_some().
  void set_status(OutputStream stream, const std::string& text);

  // Writes as much as possible without blocking. False once the pipe's reader has closed it. Text
  // that cannot be written for another reason is dropped, and the reason is kept.
  bool write_some();

  bool empty() const { return queue_.empty() && !redraw_; }
  // Too much is queued: its producers should pause.
  bool full() const { return waiting_bytes_ > (std::size_t{1} << 20); }
  // The descriptor that must become writable before more can be written. Call it only if not
  // empty().
  int descriptor() const;
  void discard();

  // The errno of the first failed write to that stream; 0 if none failed.
  int error(OutputStream stream) const { return errors_[stream == OutputStream::err]; }

 private:
  struct Text {
    int fd;
    std::string bytes;
  };
  // For both streams if they lead to the same terminal, pipe or file.
  LineMixer& mixer(OutputStream stream) {
    return mixers_[stream == OutputStream::err && !same_target_];
  }
  void add_text(OutputStream stream, const std::string& text);
  void enqueue(int fd, const std::string& text);

  bool same_target_ = false;
  std::array<LineMixer, 2> mixers_;
  std::deque<Text> queue_;
  int status_fd_ = -1;
  std::string status_;
  // Whether the queue's end leaves the status line on the screen; whether it must be drawn.
  bool drawn_ = false;
  bool redraw_ = false;
  // Bytes of the first text.
  std::size_t written_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::array<int, 2> errors_{};
};

// Whether the stream is a terminal that can erase a line (TERM is not "dumb"), and this process is
// no rank: the launcher would write a status line to its log files, and among other ranks' lines.
bool can_show_status(OutputStream stream);
// The width of the stream's terminal in columns, now; 80 if it does not tell.
int terminal_columns(OutputStream stream);
// Whether the stream's terminal shows colours and the user has not set NO_COLOR.
bool coloured(OutputStream stream);

// Writes a program's last output. If nobody reads it within the grace, the rest is dropped. False
// if not all could be written.
bool write_last(OutputStream stream, std::string text);

}  // namespace lockstep
