// SPDX-License-Identifier: BSD-3-Clause
// The rank's side of rank_processes.h.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "support/process_table.h"
#include "support/rank_state.h"
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "lockstep/core/trace_span.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

std::chrono::nanoseconds elapsed_since(std::int64_t then) {
  return std::chrono::nanoseconds(monotonic_nanoseconds() - then);
}

}  // namespace

int Rank::rank() const {
  return state_.rank;
}
int Rank::size() const {
  return state_.size;
}
const std::string& Rank::folder() const {
  return state_.folder;
}
bool Rank::failed() const {
  return state_.failed;
}

std::string Rank::rendezvous_url(std::string_view name) const {
  return fmt::format("file://{}/{}", state_.folder, name);
}

void Rank::cue(std::string_view name) {
  state_.announce(name);
}

void Rank::await(int rank, std::string_view name) {
  note(fmt::format("waiting for rank {}'s cue \"{}\"", rank, name));
  state_.wait_for(rank, name);
  note(fmt::format("after rank {}'s cue \"{}\"", rank, name));
}

void Rank::await_signal() {
  note("waiting for its signal");
  while (true) ::pause();
}

pid_t Rank::pid_of(int rank) const {
  return state_.board[rank].pid;
}

std::chrono::milliseconds Rank::since_signal(int rank) const {
  const std::int64_t then = state_.board[rank].signalled_at;
  return then == 0 ? 0ms : std::chrono::ceil<std::chrono::milliseconds>(elapsed_since(then));
}

std::chrono::milliseconds Rank::since_end(int rank) const {
  const std::int64_t then = state_.board[rank].ended_at;
  if (then == 0) return 0ms;
  std::chrono::nanoseconds without_waits = elapsed_since(then);
  for (int other = 0; other < state_.size; ++other) {
    without_waits -= state_.board[other].waited_since_first_end();
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::max(without_waits, 0ns));
}

void Rank::note(std::string_view text) {
  state_.board[state_.rank].write(text);
}

void Rank::report(std::string_view result) {
  state_.send({MessageType::result, state_.rank, "", std::string(result)});
}

void Rank::State::send(const Message& message) {
  const std::scoped_lock lock(send_mutex);
  send_message(socket, message);
}

void Rank::State::announce(std::string_view cue) {
  send({MessageType::cue, rank, std::string(cue), ""});
}

void Rank::State::wait_for(int rank, std::string_view cue) {
  const std::pair wanted(rank, std::string(cue));
  while (true) {
    // Some may have come together with the message that started this rank.
    while (auto message = reader.next()) cues.emplace_back(message->number, message->name);
    if (std::find(cues.begin(), cues.end(), wanted) != cues.end()) break;
    if (!reader.read_some(socket)) throw std::runtime_error("the test has gone");
  }
}

// The kernel forgets the time of a process that has ended, so the board keeps the longest.
std::chrono::nanoseconds BoardEntry::waited_since_first_end() {
  const std::int64_t read = waited_for_a_core(pid).count();
  std::int64_t longest = waited;
  while (longest < read && !waited.compare_exchange_weak(longest, read)) continue;
  return std::chrono::nanoseconds(waited - waited_before);
}

void BoardEntry::write(std::string_view text) {
  const std::size_t size = std::min(text.size(), sizeof note - 1);
  std::memcpy(note, text.data(), size);
  note[size] = '\0';
}

}  // namespace lockstep::testing
