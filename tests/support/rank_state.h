// SPDX-License-Identifier: BSD-3-Clause
// What a rank process holds, and what it shares with the test that started it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/message.h"
#include "support/rank_processes.h"
#include <sys/types.h>

namespace lockstep::testing {

// One for each rank, in memory that all of them share: it can be read when its owner is stuck.
struct BoardEntry {
  std::atomic<pid_t> pid;
  // When the test signalled the rank, as monotonic_nanoseconds() has it; 0 if it did not.
  std::atomic<std::int64_t> signalled_at;
  // When the test saw the rank's end, likewise.
  std::atomic<std::int64_t> ended_at;
  // How long the rank had waited for a core, in nanoseconds, when the test first saw a rank's end;
  // and the longest time that was read since.
  std::atomic<std::int64_t> waited_before;
  std::atomic<std::int64_t> waited;
  char note[240];

  void write(std::string_view text);
  // How long the rank has waited for a core since the test first saw a rank's end.
  std::chrono::nanoseconds waited_since_first_end();
};

// Of a process; ranks that are threads send their cues another way.
struct Rank::State {
  virtual ~State() = default;
  int rank = 0;
  int size = 1;
  std::string folder;
  int socket = -1;
  BoardEntry* board = nullptr;
  // Under AddressSanitizer, at the rank's end.
  bool looks_for_leaks = false;

  std::atomic<bool> failed = false;
  std::mutex send_mutex;
  MessageReader reader;
  std::vector<std::pair<int, std::string>> cues;

  void send(const Message& message);
  virtual void announce(std::string_view cue);
  virtual void wait_for(int rank, std::string_view cue);
};

}  // namespace lockstep::testing
