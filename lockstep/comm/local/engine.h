// SPDX-License-Identifier: BSD-3-Clause
// Carries out one rank's collectives and messages on one group. Nothing runs in the background:
// each start, poll and wait advances all that is under way as far as the peers allow, and a wait
// also what is under way on other groups of this process (progress.h).
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/staged_operation.h"
#include "lockstep/comm/local/call_queue.h"
#include "lockstep/comm/local/mailbox.h"
#include "lockstep/comm/local/peers.h"
#include "lockstep/core/deadline.h"

namespace lockstep::local {

// Thread-safe. All errors are final: the first one is thrown to every later caller as well.
class Engine final : public lockstep::Engine {
 public:
  static std::shared_ptr<Engine> make(std::unique_ptr<Peers> peers, const Membership& membership);

  // Takes its turn behind the calls started before. A list is a transfer for each tensor.
  void start(const std::shared_ptr<Transfer>& transfer);
  // Takes its turn behind the messages to or from this peer on this tag.
  void start(const std::shared_ptr<Message>& message, Tag tag);
  bool poll(Task& task) override;
  // There are no streams: the thread waits.
  void wait(Task& task, const Deadline& deadline, Waiting who) override;

  // Ends the group for all ranks, with the reason.
  void abort(const std::string& reason);
  // Tells the peers that an exception ends this rank. Calls for which it has done its part still
  // complete.
  void leave_failing(const std::string& reason);

  // A tensor that every rank can reach: a collective call, blocking.
  at::Tensor make_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                         const Deadline& deadline);

  // ProcessGroup::own_share.
  ElementRange own_share(const at::Tensor& tensor);
  const std::string& backend() const { return state_.backend(); }

  bool try_advance() override;
  ControlBlock* doorbell_if_busy() override;

 private:
  using Clock = std::chrono::steady_clock;

  Engine(std::unique_ptr<Peers> peers, const Membership& membership);

  // With mutex_ held. advance() is true if anything moved.
  bool advance();
  bool idle() const;
  Mailbox& mailbox(Collective direction, int peer, Tag tag);
  // The oldest of what is under way, and the ranks that it waits for.
  const Call& oldest() const;
  std::vector<int> awaited() const;
  // What a peer was last seen waiting in; "" if that is not known, or past.
  std::string last_wait_of(int rank) const;
  // A call that needs nobody's answer would not notice that a peer has ended the group; and one
  // that comes later must not complete what others wait for.
  void check_still_there(Call call, std::uint64_t number);
  // Looks for aborts and lost peers, and records an error if there is one.
  void look_around();
  void look_for_aborts(const Call& call);
  void look_for_losses(const Call& call);
  // At the deadline of the oldest call.
  void give_up(const Deadline& deadline);
  // As GroupState::fail, and forgets what is under way.
  void fail(std::exception_ptr error, int culprit = -1);
  void tell_peers(AbortCause cause, const std::string& reason, int lost_rank = -1,
                  int culprit = -1);
  void leave_word(const std::string& reason, int lost_rank, int culprit);
  // Without mutex_ held: tells the peers, and throws the error.
  template <class SomeError>
  [[noreturn]] void end_group(AbortCause cause, const SomeError& error, int lost_rank = -1);
  // A wait may spin only where there is a core for each rank.
  bool every_rank_has_a_core() const;

  const std::unique_ptr<Peers> peers_;
  const bool spin_;

  std::mutex making_;
  std::mutex mutex_;
  GroupState state_;
  CallQueue calls_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  Clock::time_point last_look_;
};

}  // namespace lockstep::local
