// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/shm/transfers.h"

#include <algorithm>
#include <cstring>

#include "lockstep/collective/kernels/reduce.h"
#include "lockstep/collective/shm/control_block.h"

namespace lockstep::shm {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

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

class AllReduceTransfer final : public Transfer {
 public:
  AllReduceTransfer(at::Tensor tensor, AllReduceOptions options, int rank, int size,
                    const SharedTensors& shared)
      : Transfer({.collective = Collective::all_reduce,
                  .op = options.op,
                  .type = tensor.scalar_type(),
                  .elements = tensor.numel(),
                  .scale = options.scale},
                 tensor.element_size()),
        tensor_(std::move(tensor)),
        scale_(kernel_scale(options, size)),
        rank_(rank),
        size_(size) {
    SharedPlace place;
    if (payload_bytes() > kInlineBytes && shared.find(tensor_.data_ptr(), payload_bytes(), place)) {
      shared_place_ = std::move(place);
    }
  }

  void copy_in(Chunk chunk, std::byte* place) override {
    std::memcpy(place, own(chunk), chunk.count * payload_bytes_per_element());
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    std::byte* destination = own(chunk);
    reduce_run(places, {&destination, 1}, 0, chunk.count);
  }

  void combine_share(Chunk chunk, std::span<std::byte* const> places) override {
    const Chunk share = share_of({0, chunk.count}, rank_, size_, payload_bytes_per_element());
    reduce_run(places, places, share.begin, share.count);
  }

  void copy_out(Chunk chunk, const std::byte* place) override {
    std::memcpy(own(chunk), place, chunk.count * payload_bytes_per_element());
  }

  void combine_in_place() override {
    const auto& places = shared_place_->addresses;
    const Chunk share = share_of({0, call().elements}, rank_, size_, payload_bytes_per_element());
    reduce_run(places, places, share.begin, share.count);
  }

 private:
  std::byte* own(Chunk chunk) const {
    return bytes_of(tensor_) + chunk.begin * payload_bytes_per_element();
  }

  void reduce_run(std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                  std::int64_t begin, std::int64_t count) {
    const std::int64_t offset = begin * payload_bytes_per_element();
    from_.clear();
    to_.clear();
    for (std::byte* source : sources) from_.push_back(source + offset);
    for (std::byte* destination : destinations) to_.push_back(destination + offset);
    reduce(from_, to_, count, call().type, call().op, scale_);
  }

  at::Tensor tensor_;
  double scale_;
  int rank_;
  int size_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
};

class BroadcastTransfer final : public Transfer {
 public:
  BroadcastTransfer(at::Tensor tensor, int root, int rank)
      : Transfer({.collective = Collective::broadcast,
                  .type = tensor.scalar_type(),
                  .root = root,
                  .elements = tensor.numel()},
                 tensor.element_size()),
        tensor_(std::move(tensor)),
        is_root_(root == rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    if (is_root_) std::memcpy(place, own(chunk), chunk.count * payload_bytes_per_element());
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    if (is_root_) return;
    std::memcpy(own(chunk), places[call().root], chunk.count * payload_bytes_per_element());
  }

 private:
  std::byte* own(Chunk chunk) const {
    return bytes_of(tensor_) + chunk.begin * payload_bytes_per_element();
  }

  at::Tensor tensor_;
  bool is_root_;
};

class AllGatherTransfer final : public Transfer {
 public:
  AllGatherTransfer(std::vector<at::Tensor> outputs, at::Tensor input)
      : Transfer({.collective = Collective::all_gather,
                  .type = input.scalar_type(),
                  .elements = input.numel()},
                 input.element_size()),
        outputs_(std::move(outputs)),
        input_(std::move(input)) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    std::memcpy(place, bytes_of(input_) + offset(chunk), bytes(chunk));
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    for (std::size_t rank = 0; rank < outputs_.size(); ++rank) {
      std::memcpy(bytes_of(outputs_[rank]) + offset(chunk), places[rank], bytes(chunk));
    }
  }

 private:
  std::int64_t offset(Chunk chunk) const { return chunk.begin * payload_bytes_per_element(); }
  std::int64_t bytes(Chunk chunk) const { return chunk.count * payload_bytes_per_element(); }

  std::vector<at::Tensor> outputs_;
  at::Tensor input_;
};

// Each rank shows, one after the other, its pieces for rank 0, rank 1 and so on.
class ReduceScatterTransfer final : public Transfer {
 public:
  ReduceScatterTransfer(at::Tensor output, std::vector<at::Tensor> inputs, AllReduceOptions options,
                        int rank)
      : Transfer({.collective = Collective::reduce_scatter,
                  .op = options.op,
                  .type = output.scalar_type(),
                  .elements = output.numel(),
                  .scale = options.scale},
                 output.element_size() * static_cast<std::int64_t>(inputs.size())),
        element_bytes_(output.element_size()),
        output_(std::move(output)),
        inputs_(std::move(inputs)),
        scale_(kernel_scale(options, static_cast<int>(inputs_.size()))),
        rank_(rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    const std::int64_t piece = chunk.count * element_bytes_;
    for (const auto& input : inputs_) {
      std::memcpy(place, bytes_of(input) + chunk.begin * element_bytes_, piece);
      place += piece;
    }
  }

  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    std::vector<const void*> sources;
    for (const std::byte* place : places) {
      sources.push_back(place + rank_ * chunk.count * element_bytes_);
    }
    void* destination = bytes_of(output_) + chunk.begin * element_bytes_;
    reduce(sources, {&destination, 1}, chunk.count, call().type, call().op, scale_);
  }

 private:
  std::int64_t element_bytes_;
  at::Tensor output_;
  std::vector<at::Tensor> inputs_;
  double scale_;
  int rank_;
};

class BarrierTransfer final : public Transfer {
 public:
  BarrierTransfer() : Transfer({.collective = Collective::barrier}, 0) {}
  void copy_in(Chunk, std::byte*) override {}
  void combine(Chunk, std::span<std::byte* const>) override {}
};

}  // namespace

std::shared_ptr<Transfer> all_reduce_transfer(at::Tensor tensor, AllReduceOptions options, int rank,
                                              int size, const SharedTensors& shared) {
  return std::make_shared<AllReduceTransfer>(std::move(tensor), options, rank, size, shared);
}

std::shared_ptr<Transfer> broadcast_transfer(at::Tensor tensor, int root, int rank) {
  return std::make_shared<BroadcastTransfer>(std::move(tensor), root, rank);
}

std::shared_ptr<Transfer> all_gather_transfer(std::vector<at::Tensor> outputs, at::Tensor input) {
  return std::make_shared<AllGatherTransfer>(std::move(outputs), std::move(input));
}

std::shared_ptr<Transfer> reduce_scatter_transfer(at::Tensor output, std::vector<at::Tensor> inputs,
                                                  AllReduceOptions options, int rank) {
  return std::make_shared<ReduceScatterTransfer>(std::move(output), std::move(inputs), options,
                                                 rank);
}

std::shared_ptr<Transfer> barrier_transfer() {
  return std::make_shared<BarrierTransfer>();
}

}  // namespace lockstep::shm
