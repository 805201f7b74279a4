// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/memory/mailbox.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/collective/memory/doorbell.h"
#include "lockstep/core/error.h"

namespace lockstep::memory {

Mailbox::Mailbox(Peers& peers, Collective direction, int peer, Lane lane)
    : peers_(peers),
      direction_(direction),
      peer_(peer),
      lane_(lane),
      channel_(direction == Collective::send ? peers.own().channel(peer, lane)
                                             : peers.blocks()[peer]->channel(peers.rank(), lane)) {}

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
    // An empty message is one letter all the same.
    if (transferred_ < message.bytes()) continue;
    transferred_ = 0;
    message.mark_done();
    messages_.pop_front();
  }
  if (moved) ring(*peers_.blocks()[peer_]);
  return moved;
}

bool Mailbox::fill(Message& message) {
  if (letters_ - channel_.taken.load(std::memory_order_acquire) >= kLetters) return false;
  Letter& letter = channel_.letter(letters_);
  letter.call = message.call();
  const auto bytes = std::min(kLetterBytes, message.bytes() - transferred_);
  if (bytes > 0) std::memcpy(letter.payload, message.data() + transferred_, bytes);
  transferred_ += bytes;
  channel_.filled.store(++letters_, std::memory_order_release);
  return true;
}

bool Mailbox::take(Message& message) {
  if (channel_.filled.load(std::memory_order_acquire) <= letters_) return false;
  const Letter& letter = channel_.letter(letters_);
  const Call& own = message.call();
  if (letter.call.type != own.type || letter.call.elements != own.elements) {
    // Then the meeting before it ends the call, on every rank. Until all have come to it, the peer
    // counts as one that is waited for.
    if (lane_ == Lane::all_to_all) return false;
    throw UsageError(fmt::format(
        "[{}] {}, rank {} of {}: this rank called {}, but {} called {}; both must name the same "
        "size and type, in the same order",
        peers_.backend(), title(own), peers_.rank(), peers_.size(), describe(own),
        peers_.name(peer_), describe(letter.call)));
  }
  const auto bytes = std::min(kLetterBytes, message.bytes() - transferred_);
  if (bytes > 0) std::memcpy(message.data() + transferred_, letter.payload, bytes);
  transferred_ += bytes;
  channel_.taken.store(++letters_, std::memory_order_release);
  return true;
}

}  // namespace lockstep::memory
