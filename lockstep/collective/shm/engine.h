// SPDX-License-Identifier: BSD-3-Clause
// Runs one rank's calls on one shared-memory group, in order. Nothing runs in the background: each
// start, poll and wait advances all calls that are under way as far as the peers allow.
//
// A call goes through three states. Posted: this rank has shown its tensor. Combined: all ranks
// have posted, and this rank has done its share. Done: nobody touches this rank's tensor any more.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/collective/shm/control_block.h"
#include "lockstep/collective/shm/peer_mesh.h"
#include "lockstep/collective/shm/segment.h"
#include "lockstep/collective/shm/shared_tensors.h"
#include "lockstep/collective/shm/transfer.h"
#include "lockstep/core/deadline.h"

namespace lockstep::shm {

// Thread-safe. All errors are final: the first one is thrown to every later caller as well.
class Engine {
 public:
  // Joins the peers; see PeerMesh for the errors.
  Engine(const Membership& membership, const Deadline& deadline);

  // Takes its turn behind the calls started before. A list is a transfer for each tensor.
  void start(std::shared_ptr<Transfer> transfer, int tensor = 0, int tensors = 1);
  // Whether the transfer is done, after advancing what can be advanced without waiting.
  bool poll(const Transfer& transfer);
  // Blocks until it is done. TimeoutError and PeerLost name who was waited for.
  void wait(const Transfer& transfer, const Deadline& deadline);

  // Ends the group for all ranks, with the reason.
  void abort(const std::string& reason);

  // Makes memory that every rank maps: a collective call, blocking.
  std::vector<Mapping> share_memory(std::size_t bytes, std::uint64_t& segment,
                                    const Deadline& deadline);
  SharedTensors& shared_tensors() { return *shared_tensors_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::shared_ptr<Transfer> transfer;
    int arrived_peers = 0;  // checked so far, in the order of the ranks
    bool in_place = true;   // so far: every rank's tensor is at the same shared place
    // Chunks of a staged transfer; counts within this call.
    std::uint64_t first_chunk = 0;
    std::int64_t staged = -1;
    std::int64_t combined = 0;
    std::int64_t copied_out = 0;
  };

  // With mutex_ held. advance() is true if anything moved.
  bool advance();
  bool post(Entry& entry);
  bool combine(Entry& entry);
  bool combine_chunks(Entry& entry);
  bool complete(const Entry& entry);
  bool all_arrived(Entry& entry);
  bool all_reached(std::atomic<std::uint64_t> ControlBlock::*counter, std::uint64_t value) const;
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value);

  // The ranks that the oldest call waits for.
  std::vector<int> awaited() const;
  // Looks for aborts and lost peers, and records an error if there is one. True if there is, or if
  // anything moved since the caller looked.
  bool look_around();
  void look_for_aborts(const Call& call);
  bool look_for_losses(const Call& call);
  // At the deadline of the oldest call.
  void give_up(const Deadline& deadline);
  void fail(std::exception_ptr error);
  void tell_peers(AbortCause cause, const std::string& reason);
  void check_error() const {
    if (error_) std::rethrow_exception(error_);
  }
  // A wait may spin only where there is a core for each rank.
  bool every_rank_has_a_core() const;
  std::string where(const Call& call) const;
  std::string who(int rank) const;

  PeerMesh mesh_;
  std::shared_ptr<SharedTensors> shared_tensors_ = std::make_shared<SharedTensors>();
  std::vector<Mapping> mappings_;
  std::vector<ControlBlock*> blocks_;
  ControlBlock& own_;
  const bool spin_;

  std::mutex mutex_;
  std::exception_ptr error_;
  std::deque<Entry> entries_;  // not done yet; the first posted_ are posted, of these the first
  std::size_t posted_ = 0;     // combined_ are combined
  std::size_t combined_ = 0;
  std::uint64_t last_number_ = 0;
  std::uint64_t last_chunk_ = 0;
  Clock::time_point last_look_;
};

}  // namespace lockstep::shm
