// SPDX-License-Identifier: BSD-3-Clause
// One end of a channel. The n-th message sent matches the n-th received; size and type must agree.
#pragma once

#include <deque>
#include <memory>

#include "lockstep/comm/local/message.h"
#include "lockstep/comm/local/peers.h"

namespace lockstep::local {

// Not thread-safe: its engine holds a lock.
class Mailbox {
 public:
  Mailbox(Peers& peers, Collective direction, int peer, Tag tag);

  Collective direction() const { return direction_; }
  int peer() const { return peer_; }
  Tag tag() const { return tag_; }

  // Numbers the message and appends it.
  void push(std::shared_ptr<Message> message);
  // Copies as much as the channel has room for, or has received. True if anything moved. UsageError
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
