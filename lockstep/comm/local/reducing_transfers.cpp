// SPDX-License-Identifier: BSD-3-Clause
// Transfers of the collectives that combine the ranks' elements.
#include <algorithm>
#include <cstring>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/local/control_block.h"
#include "lockstep/comm/local/transfers.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/kernels/stream_copy.h"

namespace lockstep::local {
namespace {

// The number of bytes that are reduced and copied at a time, while they are in a core's fastest
// caches.
constexpr std::int64_t kBlockBytes = 4 * 1024;

// all_reduce, or reduce if there is a root; then only root's tensor gets the result.
class ReduceTransfer final : public Transfer {
 public:
  ReduceTransfer(const Call& call, HostTensor tensor, int rank, int size, std::vector<Piece> pieces)
      : Transfer(call, tensor.element_bytes()),
        tensor_(std::move(tensor)),
        pieces_(std::move(pieces)),
        scale_(scale_over(size, call.op, call.scale)),
        rank_(rank),
        size_(size),
        receives_(call.root < 0 || call.root == rank) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    for (const Piece& piece : pieces_) {
      const ElementRange part = overlap(piece.range(), chunk);
      std::memcpy(own(part), values(piece, part), part.count * payload_bytes_per_element());
    }
    std::memcpy(payload, own(chunk), chunk.count * payload_bytes_per_element());
  }

  void combine(ElementRange chunk, std::span<std::byte* const> payloads) override {
    std::byte* destination = own(chunk);
    if (receives_) reduce_range(payloads, {&destination, 1}, {0, chunk.count});
  }

  void combine_share(ElementRange chunk, std::span<std::byte* const> payloads) override {
    reduce_range(payloads, receivers(payloads),
                 share_of({0, chunk.count}, rank_, size_, payload_bytes_per_element()));
  }

  void copy_out(ElementRange chunk, const std::byte* payload) override {
    if (receives_) std::memcpy(own(chunk), payload, chunk.count * payload_bytes_per_element());
  }

  const void* payload_in_place() const override { return tensor_.data(); }

  void combine_in_place(std::span<std::byte* const> payloads) override {
    ElementRange rest = share_of({0, call().elements}, rank_, size_, payload_bytes_per_element());
    for (const Piece& piece : pieces_) {
      const ElementRange range = piece.range();
      reduce_range(payloads, receivers(payloads), {rest.begin, range.begin - rest.begin});
      reduce_piece(payloads, piece);
      rest = {range.end(), rest.end() - range.end()};
    }
    pieces_.clear();
    reduce_range(payloads, receivers(payloads), rest);
  }

 private:
  std::byte* own(ElementRange range) const {
    return tensor_.data() + range.begin * payload_bytes_per_element();
  }
  const std::byte* values(const Piece& piece, ElementRange range) const {
    return static_cast<const std::byte*>(piece.values.data_ptr()) +
           (range.begin - piece.begin) * payload_bytes_per_element();
  }
  std::span<std::byte* const> receivers(std::span<std::byte* const> all) const {
    return call().root < 0 ? all : all.subspan(static_cast<std::size_t>(call().root), 1);
  }

  void reduce_range(std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                    ElementRange range) {
    const std::int64_t offset = range.begin * payload_bytes_per_element();
    c10::SmallVector<const void*, kFewRanks> from;
    c10::SmallVector<void*, kFewRanks> to;
    for (std::byte* source : sources) from.push_back(source + offset);
    for (std::byte* destination : destinations) to.push_back(destination + offset);
    reduce(from, to, range.count, call().type, call().op, scale_);
  }

  // Results overwrite the peers' elements, which have just been read. This rank's tensor has not
  // been read, so its results bypass the caches.
  void reduce_piece(std::span<std::byte* const> payloads, const Piece& piece) {
    const auto rank = static_cast<std::size_t>(rank_);
    const std::int64_t block = kBlockBytes / payload_bytes_per_element();
    const ElementRange range = piece.range();
    c10::SmallVector<const void*, kFewRanks> from(payloads.size());
    c10::SmallVector<void*, kFewRanks> to;
    for (std::int64_t begin = range.begin; begin < range.end(); begin += block) {
      const ElementRange part = overlap(range, {begin, block});
      const std::int64_t offset = part.begin * payload_bytes_per_element();
      to.clear();
      for (std::size_t k = 0; k < payloads.size(); ++k) {
        from[k] = payloads[k] + offset;
        if (k != rank) to.push_back(payloads[k] + offset);
      }
      from[rank] = values(piece, part);
      reduce(from, to, part.count, call().type, call().op, scale_);
      stream_copy(own(part), to.front(),
                  static_cast<std::size_t>(part.count * payload_bytes_per_element()));
    }
    finish_streaming();
  }

  HostTensor tensor_;
  std::vector<Piece> pieces_;  // parts of this rank's share that lie in other buffers
  double scale_;
  int rank_;
  int size_;
  bool receives_;
};

// Each rank's payload is its tensors for rank 0, rank 1 and so on, one after the other.
class ReduceScatterTransfer final : public Transfer {
 public:
  ReduceScatterTransfer(const Call& call, HostTensor output, std::vector<HostTensor> inputs,
                        int rank)
      : Transfer(call, output.element_bytes() * static_cast<std::int64_t>(inputs.size())),
        element_bytes_(output.element_bytes()),
        output_(std::move(output)),
        inputs_(std::move(inputs)),
        scale_(scale_over(static_cast<int>(inputs_.size()), call.op, call.scale)),
        rank_(rank) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    const std::int64_t piece = chunk.count * element_bytes_;
    for (const auto& input : inputs_) {
      std::memcpy(payload, input.data() + chunk.begin * element_bytes_, piece);
      payload += piece;
    }
  }

  void combine(ElementRange chunk, std::span<std::byte* const> payloads) override {
    std::vector<const void*> sources;
    for (const std::byte* payload : payloads) {
      sources.push_back(payload + rank_ * chunk.count * element_bytes_);
    }
    void* destination = output_.data() + chunk.begin * element_bytes_;
    reduce(sources, {&destination, 1}, chunk.count, call().type, call().op, scale_);
  }

  const void* payload_in_place() const override {
    const std::byte* next = inputs_.front().data();
    for (const auto& input : inputs_) {
      if (input.data() != next) return nullptr;
      next += call().elements * element_bytes_;
    }
    return inputs_.front().data();
  }

 private:
  std::int64_t element_bytes_;
  HostTensor output_;
  std::vector<HostTensor> inputs_;
  double scale_;
  int rank_;
};

}  // namespace

// Shares are whole cache lines.
ElementRange share_of(ElementRange whole, int rank, int size, std::int64_t element_bytes) {
  const std::int64_t line =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kCacheLine) / element_bytes);
  const std::int64_t lines = (whole.count + line - 1) / line;
  const std::int64_t begin = std::min(whole.count, lines * rank / size * line);
  const std::int64_t end = std::min(whole.count, lines * (rank + 1) / size * line);
  return {whole.begin + begin, end - begin};
}

std::shared_ptr<Transfer> reduce_transfer(const Call& call, HostTensor tensor, int rank, int size,
                                          std::vector<Piece> pieces) {
  return std::make_shared<ReduceTransfer>(call, std::move(tensor), rank, size, std::move(pieces));
}

std::shared_ptr<Transfer> reduce_scatter_transfer(const Call& call, HostTensor output,
                                                  std::vector<HostTensor> inputs, int rank) {
  return std::make_shared<ReduceScatterTransfer>(call, std::move(output), std::move(inputs), rank);
}

}  // namespace lockstep::local
