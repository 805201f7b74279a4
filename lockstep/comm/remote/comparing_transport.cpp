// SPDX-License-Identifier: BSD-3-Clause
// Sends short blocks with the first message of a call, and longer ones as messages of their own.
#include "lockstep/comm/remote/comparing_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/remote/payload.h"

namespace lockstep::remote {
namespace {

// Heads keep the order of the calls, so the n-th head from a peer describes its n-th call.
constexpr int kHeadTag = 0;

// Lists of messages for up to this many ranks need no heap memory.
constexpr unsigned kFewRanks = 4;

// Blocks of different calls or stages practically never have the same tag. They wait unmatched
// until the heads explain the difference.
int tag_of(const Call& call, std::size_t stage, int tags) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const std::uint64_t field :
       {call.number, static_cast<std::uint64_t>(call.collective),
        static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.type),
        static_cast<std::uint64_t>(call.algorithm), static_cast<std::uint64_t>(call.root),
        static_cast<std::uint64_t>(call.elements), std::bit_cast<std::uint64_t>(call.scale),
        static_cast<std::uint64_t>(call.tensor), static_cast<std::uint64_t>(call.tensors),
        static_cast<std::uint64_t>(stage)}) {
    digest = (digest ^ field) * 0x9e3779b97f4a7c15;
    digest ^= digest >> 29;
  }
  return kHeadTag + 1 + static_cast<int>(digest % static_cast<std::uint64_t>(tags - 1));
}

std::vector<Block> blocks_of(const at::Tensor& tensor, const std::vector<std::int64_t>& bytes) {
  std::vector<Block> blocks;
  blocks.reserve(bytes.size());
  std::byte* data = first_byte(tensor);
  for (const std::int64_t count : bytes) {
    blocks.push_back({data, count});
    data += count;
  }
  return blocks;
}

}  // namespace

ComparingTransport::ComparingTransport(std::unique_ptr<Messenger> messenger, int rank, int size)
    : messenger_(std::move(messenger)), rank_(rank), size_(size), memory_(size) {}

void ComparingTransport::begin_stage(const Call& call, std::size_t stage,
                                     std::span<const std::int64_t> sizes) {
  call_ = call;
  stage_ = stage;
  sizes_.assign(sizes.begin(), sizes.end());
}

std::unique_ptr<Transmission> ComparingTransport::exchange(
    at::Tensor outgoing, std::vector<std::int64_t> outgoing_bytes, at::Tensor incoming,
    std::vector<std::int64_t> incoming_bytes) {
  return exchange({.outgoing = blocks_of(outgoing, outgoing_bytes),
                   .incoming = blocks_of(incoming, incoming_bytes),
                   .tensors = {outgoing, incoming}});
}

std::unique_ptr<Transmission> ComparingTransport::all_gather(at::Tensor own, at::Tensor all,
                                                             std::vector<std::int64_t> bytes) {
  return exchange({.outgoing = std::vector(bytes.size(), Block{first_byte(own), own.numel()}),
                   .incoming = blocks_of(all, bytes),
                   .tensors = {own, all}});
}

std::unique_ptr<Transmission> ComparingTransport::exchange(Blocks blocks) {
  const Block& from = blocks.outgoing[static_cast<std::size_t>(rank_)];
  const Block& to = blocks.incoming[static_cast<std::size_t>(rank_)];
  if (to.bytes > 0) std::memmove(to.data, from.data, static_cast<std::size_t>(to.bytes));
  const auto shared = std::make_shared<Blocks>(std::move(blocks));
  if (stage_ == 0) return exchange_heads(shared);
  return exchange_blocks(shared, [](const Block& block) { return block.bytes > 0; });
}

std::unique_ptr<Transmission> ComparingTransport::exchange_heads(
    const std::shared_ptr<Blocks>& blocks) {
  auto exchange = std::make_unique<ComparedExchange>(call_, rank_, sizes_, blocks, memory_);
  c10::SmallVector<Messenger::Message, kFewRanks> heads;
  c10::SmallVector<Messenger::Message, kFewRanks> slots;
  for (int distance = 1; distance < size_; ++distance) {  // not all to the same rank at once
    const int from = (rank_ + size_ - distance) % size_;
    const int to = (rank_ + distance) % size_;
    slots.push_back({exchange->slot(from), memory_.slot_bytes(), from, kHeadTag});
    const Block& block = blocks->outgoing[static_cast<std::size_t>(to)];
    const auto [data, bytes] = exchange->write(to, memory_.is_short(block));
    heads.push_back({data, bytes, to, kHeadTag});
  }
  auto transmission = messenger_->exchange({heads.data(), heads.size()},
                                           {slots.data(), slots.size()}, exchange->memory());
  const auto is_long = [this](const Block& block) { return !memory_.is_short(block); };
  const bool some_are = std::ranges::any_of(blocks->outgoing, is_long) ||
                        std::ranges::any_of(blocks->incoming, is_long);
  exchange->start(std::move(transmission), some_are ? exchange_blocks(blocks, is_long) : nullptr);
  return exchange;
}

template <class Function>
std::unique_ptr<Transmission> ComparingTransport::exchange_blocks(
    const std::shared_ptr<Blocks>& blocks, const Function& chooses) {
  const int tag = tag_of(call_, stage_, messenger_->tags());
  c10::SmallVector<Messenger::Message, kFewRanks> outgoing;
  c10::SmallVector<Messenger::Message, kFewRanks> incoming;
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ + size_ - distance) % size_;
    const int to = (rank_ + distance) % size_;
    const Block& in = blocks->incoming[static_cast<std::size_t>(from)];
    const Block& out = blocks->outgoing[static_cast<std::size_t>(to)];
    if (chooses(in)) incoming.push_back({in.data, in.bytes, from, tag});
    if (chooses(out)) outgoing.push_back({out.data, out.bytes, to, tag});
  }
  return messenger_->exchange({outgoing.data(), outgoing.size()},
                              {incoming.data(), incoming.size()}, blocks);
}

std::unique_ptr<Transmission> ComparingTransport::broadcast(at::Tensor bytes, int root) {
  return messenger_->broadcast(std::move(bytes), root);
}

std::unique_ptr<Transmission> ComparingTransport::send(at::Tensor bytes, int to, int tag) {
  return messenger_->send(std::move(bytes), to, tag);
}

std::unique_ptr<Transmission> ComparingTransport::receive(at::Tensor bytes, int from, int tag) {
  return messenger_->receive(std::move(bytes), from, tag);
}

std::int64_t ComparingTransport::chunk_bytes_between_machines() const {
  return messenger_->chunk_bytes_between_machines();
}

std::uint64_t ComparingTransport::events() const {
  return messenger_->events();
}

void ComparingTransport::wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) {
  messenger_->wait_for_event(events, at_most);
}

}  // namespace lockstep::remote
