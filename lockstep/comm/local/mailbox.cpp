// SPDX-License-Identifier: BSD-3-Clause
// Copies messages into and out of the fragments of a channel.
#include "lockstep/comm/local/mailbox.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/local/doorbell.h"
#include "lockstep/core/error.h"

namespace lockstep::local {

Mailbox::Mailbox(Peers& peers, Collective direction, int peer, Tag tag)
    : peers_(peers),
      direction_(direction),
      peer_(peer),
      tag_(tag),
      channel_(direction == Collective::send ? peers.own().channel(peer, tag)
                                             : peers.blocks()[peer]->channel(peers.rank(), tag)) {}

void Mailbox::push(std::shared_ptr<Message> message) {
  message->number(++last_number_);
  messages_.push_back(std::move(message));
}

bool Mailbox::advance() {
  bool moved = false;
  while (!messages_.empty()) {
    Message& message = *messages_.front();
    if (!(direction_ == Collective::send ? fill(message) : take(message))) break;
    moved = true;
    // An empty message takes one fragment as well.
    if (transferred_ < message.bytes()) continue;
    transferred_ = 0;
    message.mark_done();
    messages_.pop_front();
  }
  if (moved) ring(*peers_.blocks()[peer_]);
  return moved;
}

bool Mailbox::fill(Message& message) {
  if (fragments_ - channel_.taken.load(std::memory_order_acquire) >= kFragments) return false;
  Fragment& fragment = channel_.fragment(fragments_);
  fragment.call = message.call();
  const auto bytes = std::min(kFragmentBytes, message.bytes() - transferred_);
  if (bytes > 0) std::memcpy(fragment.payload, message.data() + transferred_, bytes);
  transferred_ += bytes;
  channel_.filled.store(++fragments_, std::memory_order_release);
  return true;
}

bool Mailbox::take(Message& message) {
  if (channel_.filled.load(std::memory_order_acquire) <= fragments_) return false;
  const Fragment& fragment = channel_.fragment(fragments_);
  const Call& own = message.call();
  if (fragment.call.type != own.type || fragment.call.elements != own.elements) {
    // The exchange agreement then ends the call on every rank. Until all ranks have reached it,
    // this rank waits for the peer.
    if (tag_ == Tag::all_to_all) return false;
    throw UsageError({.component = std::string(peers_.backend()),
                      .operation = title(own),
                      .rank = peers_.rank(),
                      .size = peers_.size()},
                     describe_message_difference(own, peers_.name(peer_), fragment.call));
  }
  const auto bytes = std::min(kFragmentBytes, message.bytes() - transferred_);
  if (bytes > 0) std::memcpy(message.data() + transferred_, fragment.payload, bytes);
  transferred_ += bytes;
  channel_.taken.store(++fragments_, std::memory_order_release);
  return true;
}

}  // namespace lockstep::local
