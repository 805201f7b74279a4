// SPDX-License-Identifier: BSD-3-Clause
// The launcher's own standard output and error, written to without ever blocking its loop.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>

namespace lockstep {

// How long a reader may take over what is left, where a program has to end.
constexpr std::chrono::milliseconds reader_grace{500};

enum class OutputStream { out, err };

// Keeps what it is given in one queue for both streams, so that whole texts stay whole and in order
// where both go to the same terminal or file.
class Console {
 public:
  void add(OutputStream stream, const std::string& text);

  // Writes what can be written without blocking. False once somebody has closed the other end of
  // the pipe. Text that cannot be written for another reason is dropped, and the reason kept.
  bool write_some();

  bool empty() const { return queue_.empty(); }
  // More waits than is good: whoever produces it should pause.
  bool full() const { return waiting_bytes_ > (std::size_t{1} << 20); }
  // The descriptor that has to become writable before more can be written. Only if not empty().
  int descriptor() const;
  void discard();

  // Why text for that stream could not be written, the first time, as an errno; 0 if all could.
  int error(OutputStream stream) const { return errors_[stream == OutputStream::err]; }

 private:
  struct Text {
    int fd;
    std::string bytes;
  };
  std::deque<Text> queue_;
  // Of the first text.
  std::size_t written_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::array<int, 2> errors_{};
};

// Writes what a program has to say before it ends. If nobody reads it within the grace, the rest is
// dropped. False if it could not all be written.
bool write_last(OutputStream stream, std::string text);

}  // namespace lockstep
