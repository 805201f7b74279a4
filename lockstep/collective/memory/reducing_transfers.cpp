// SPDX-License-Identifier: BSD-3-Clause
// Collectives that combine the ranks' elements.
#include <algorithm>
#include <cstring>

#include <c10/util/SmallVector.h>

#include "lockstep/collective/kernels/reduce.h"
#include "lockstep/collective/memory/control_block.h"
#include "lockstep/collective/memory/transfers.h"

namespace lockstep::memory {
namespace {

// A mean is a sum with a scale: one kernel does both.
double kernel_scale(AllReduceOptions options, int size) {
  return options.op == ReduceOp::mean ? options.scale / size : options.scale;
}

// The part of a run that one rank reduces for all, in whole cache lines.
Chunk share_of(Chunk whole, int rank, int size, std::int64_t element_bytes) {
  const std::int64_t line =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kCacheLine) / element_bytes);
  const std::int64_t lines = (whole.count + line - 1) / line;
  const std::int64_t begin = std::min(whole.count, lines * rank / size * line);
  const std::int64_t end = std::min(whole.count, lines * (rank + 1) / size * line);
  return {whole.begin + begin, end - begin};
}

// all_reduce, and reduce if there is a root: only that rank's tensor gets the result.
class ReduceTransfer final : public Transfer {
 public:
  ReduceTransfer(const Call& call, HostTensor tensor, double scale, int rank, int size)
      : Transfer(call, tensor.element_bytes()),
        tensor_(std::move(tensor)),
        scale_(scale),
        rank_(rank),
        size_(size),
        receives_(call.root < 0 || call.root == rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    std::memcpy(place, own(chunk), chunk.count * payload_bytes_per_element());
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    std::byte* destination = own(chunk);
    if (receives_) reduce_run(places, {&destination, 1}, 0, chunk.count);
  }

  void combine_share(Chunk chunk, std::span<std::byte* const> places) override {
    const Chunk share = share_of({0, chunk.count}, rank_, size_, payload_bytes_per_element());
    const auto receivers =
        call().root < 0 ? places : places.subspan(static_cast<std::size_t>(call().root), 1);
    reduce_run(places, receivers, share.begin, share.count);
  }

  void copy_out(Chunk chunk, const std::byte* place) override {
    if (receives_) std::memcpy(own(chunk), place, chunk.count * payload_bytes_per_element());
  }

  const void* payload_in_place() const override { return tensor_.data(); }

  void combine_in_place(std::span<std::byte* const> payloads) override {
    combine_share({0, call().elements}, payloads);
  }

 private:
  std::byte* own(Chunk chunk) const {
    return tensor_.data() + chunk.begin * payload_bytes_per_element();
  }

  void reduce_run(std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                  std::int64_t begin, std::int64_t count) {
    const std::int64_t offset = begin * payload_bytes_per_element();
    c10::SmallVector<const void*, kFewRanks> from;
    c10::SmallVector<void*, kFewRanks> to;
    for (std::byte* source : sources) from.push_back(source + offset);
    for (std::byte* destination : destinations) to.push_back(destination + offset);
    reduce(from, to, count, call().type, call().op, scale_);
  }

  HostTensor tensor_;
  double scale_;
  int rank_;
  int size_;
  bool receives_;
};

// Each rank shows, one after the other, its pieces for rank 0, rank 1 and so on.
class ReduceScatterTransfer final : public Transfer {
 public:
  ReduceScatterTransfer(HostTensor output, std::vector<HostTensor> inputs, AllReduceOptions options,
                        int rank)
      : Transfer({.collective = Collective::reduce_scatter,
                  .op = options.op,
                  .type = output.type(),
                  .elements = output.elements(),
                  .scale = options.scale},
                 output.element_bytes() * static_cast<std::int64_t>(inputs.size())),
        element_bytes_(output.element_bytes()),
        output_(std::move(output)),
        inputs_(std::move(inputs)),
        scale_(kernel_scale(options, static_cast<int>(inputs_.size()))),
        rank_(rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    const std::int64_t piece = chunk.count * element_bytes_;
    for (const auto& input : inputs_) {
      std::memcpy(place, input.data() + chunk.begin * element_bytes_, piece);
      place += piece;
    }
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    std::vector<const void*> sources;
    for (const std::byte* place : places) {
      sources.push_back(place + rank_ * chunk.count * element_bytes_);
    }
    void* destination = output_.data() + chunk.begin * element_bytes_;
    reduce(sources, {&destination, 1}, chunk.count, call().type, call().op, scale_);
  }

 private:
  std::int64_t element_bytes_;
  HostTensor output_;
  std::vector<HostTensor> inputs_;
  double scale_;
  int rank_;
};

}  // namespace

std::shared_ptr<Transfer> all_reduce_transfer(HostTensor tensor, AllReduceOptions options, int rank,
                                              int size) {
  const Call call{.collective = Collective::all_reduce,
                  .op = options.op,
                  .type = tensor.type(),
                  .elements = tensor.elements(),
                  .scale = options.scale};
  return std::make_shared<ReduceTransfer>(call, std::move(tensor), kernel_scale(options, size),
                                          rank, size);
}

std::shared_ptr<Transfer> reduce_transfer(HostTensor tensor, int root, AllReduceOptions options,
                                          int rank, int size) {
  const Call call{.collective = Collective::reduce,
                  .op = options.op,
                  .type = tensor.type(),
                  .root = root,
                  .elements = tensor.elements(),
                  .scale = options.scale};
  return std::make_shared<ReduceTransfer>(call, std::move(tensor), kernel_scale(options, size),
                                          rank, size);
}

std::shared_ptr<Transfer> reduce_scatter_transfer(HostTensor output, std::vector<HostTensor> inputs,
                                                  AllReduceOptions options, int rank) {
  return std::make_shared<ReduceScatterTransfer>(std::move(output), std::move(inputs), options,
                                                 rank);
}

}  // namespace lockstep::memory
