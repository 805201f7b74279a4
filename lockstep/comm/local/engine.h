// SPDX-License-Identifier: BSD-3-Clause
// Carries out one rank's collectives and messages on one group. Nothing runs in the background:
// each start, poll and wait advances everything under way as far as the peers allow. A wait also
// advances this process's other groups (core/task_engine.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/local/call_queue.h"
#include "lockstep/comm/local/mailbox.h"
#include "lockstep/comm/local/peers.h"
#include "lockstep/core/deadline.h"

namespace lockstep::local {

// Thread-safe. All errors are final: every later caller gets the first one as well.
class Engine final : public TaskEngine {
 public:
  static std::shared_ptr<Engine> make(std::unique_ptr<Peers> peers, const Membership& membership);

  // Queues the transfer behind earlier calls. A list of tensors is one transfer per tensor.
  void start(const std::shared_ptr<Transfer>& transfer);
  // Queues the message behind those to or from this peer with this tag.
  void start(const std::shared_ptr<Message>& message, Tag tag);
  bool poll(Task& task) override;
  // There are no streams, so the thread waits.
  void wait(Task& task, const Deadline& deadline, Waiting who) override;

  // Ends the group for all ranks, with the reason.
  void abort(const std::string& reason);
  // Tells the peers that an exception ends this rank. Calls complete if this rank has done its
  // part.
  void leave_failing(const std::string& reason);

  // Makes a tensor that every rank can reach. A blocking collective call.
  at::Tensor make_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                         const Deadline& deadline);

  // See ProcessGroup::common_memory.
  at::Tensor make_common_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                                const Deadline& deadline);

  // See ProcessGroup::has_ended.
  bool has_ended(int rank) const;
  // See ProcessGroup::own_share.
  ElementRange own_share(const at::Tensor& tensor);
  // See ProcessGroup::symmetric_memory.
  std::vector<std::byte*> symmetric_memory(const at::Tensor& tensor) const;
  const std::string& backend() const { return state_.backend(); }

  bool try_advance() override;
  Doorbell* doorbell_if_busy() override;

 private:
  using Clock = std::chrono::steady_clock;

  Engine(std::unique_ptr<Peers> peers, const Membership& membership);

  // Makes the tensor in two steps; the ranks compare its type and its number of elements.
  template <class Make>
  at::Tensor make_together(at::IntArrayRef sizes, const at::TensorOptions& options,
                           const Deadline& deadline, const Make& make);

  // These require mutex_. advance() is true if anything moved.
  bool advance();
  bool idle() const;
  Mailbox& mailbox(Collective direction, int peer, Tag tag);
  // The oldest call or message under way, and the ranks that this rank waits for.
  const Call& oldest() const;
  std::vector<int> awaited() const;
  // The call that a peer was last seen waiting in; "" if it is unknown or past.
  std::string last_wait_of(int rank) const;
  // Throws if the group has ended. A call that needs no peer's answer would not notice otherwise,
  // and a later call must not complete a call that peers wait for.
  void check_still_there(Call call, std::uint64_t number);
  // Checks for aborts and lost peers, and records an error if there is one.
  void look_around();
  void look_for_aborts(const Call& call);
  void look_for_losses(const Call& call);
  // Ends the group when the oldest call has passed its deadline.
  void give_up(const Deadline& deadline);
  // Like GroupState::fail; also forgets what is under way.
  void fail(std::exception_ptr error, int culprit = -1);
  void tell_peers(AbortCause cause, const std::string& reason, int lost_rank = -1,
                  int culprit = -1);
  void leave_word(const std::string& reason, int lost_rank, int culprit);
  // Requires that mutex_ is not held. Tells the peers, and throws the error.
  template <class SomeError>
  [[noreturn]] void end_group(AbortCause cause, const SomeError& error, int lost_rank = -1);
  // Whether each rank has a core. Only then may a wait spin.
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
