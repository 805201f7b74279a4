// SPDX-License-Identifier: BSD-3-Clause
// One end of a channel, and the messages that go through it. The n-th message sent matches the n-th
// received; size and type must agree.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/local/peers.h"
#include "lockstep/comm/local/transfers.h"

namespace lockstep::local {

class Message final : public Task {
 public:
  // `call` is a send or recv. `part_of` is the collective that the message belongs to, if any.
  Message(const Call& call, HostTensor tensor, std::optional<Call> part_of = {})
      : Task(call), tensor_(std::move(tensor)), part_of_(part_of) {}

  // The call that the user made: the collective, or else the send or recv.
  const Call& known_as() const { return part_of_ ? *part_of_ : call(); }

  std::byte* data() const { return tensor_.data(); }
  std::int64_t bytes() const { return tensor_.bytes(); }

 private:
  HostTensor tensor_;
  std::optional<Call> part_of_;
};

// Not thread-safe: its engine holds a lock.
class Mailbox {
 public:
  Mailbox(Peers& peers, Collective direction, int peer, Tag tag);

  Collective direction() const { return direction_; }
  int peer() const { return peer_; }
  Tag tag() const { return tag_; }

  // Numbers the message and appends it.
  void push(std::shared_ptr<Message> message);
  // Copies what the channel has room for, or has received. True if anything moved. UsageError
  // if two matching messages differ in size or type.
  bool advance();

  bool empty() const { return messages_.empty(); }
  std::uint64_t last_number() const { return last_number_; }
  const Call& oldest() const { return messages_.front()->known_as(); }
  void clear() { messages_.clear(); }

 private:
  bool fill(Message& message);
  bool take(Message& message);

  Peers& peers_;
  Collective direction_;
  int peer_;
  Tag tag_;
  Channel& channel_;
  std::deque<std::shared_ptr<Message>> messages_;
  std::uint64_t last_number_ = 0;
  std::uint64_t fragments_ = 0;   // filled or taken, over all messages
  std::int64_t transferred_ = 0;  // bytes of the oldest message
};

}  // namespace lockstep::local
