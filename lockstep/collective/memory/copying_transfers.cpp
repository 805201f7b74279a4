// SPDX-License-Identifier: BSD-3-Clause
// Collectives that move the ranks' elements as they are.
#include <cstring>

#include "lockstep/collective/memory/transfers.h"

namespace lockstep::memory {
namespace {

// Copies within tensors and payloads whose elements have the same size.
class CopyTransfer : public Transfer {
 protected:
  CopyTransfer(Collective collective, const at::Tensor& like, int root, int pieces = 1)
      : Transfer({.collective = collective,
                  .type = like.scalar_type(),
                  .root = root,
                  .elements = like.numel()},
                 like.element_size() * pieces),
        element_bytes_(like.element_size()) {}

  std::int64_t bytes(Chunk chunk) const { return chunk.count * element_bytes_; }
  std::byte* at(const at::Tensor& tensor, Chunk chunk) const {
    return static_cast<std::byte*>(tensor.data_ptr()) + chunk.begin * element_bytes_;
  }
  void copy(std::byte* to, const std::byte* from, Chunk chunk) const {
    // An output may be the input itself.
    if (to != from) std::memcpy(to, from, bytes(chunk));
  }

 private:
  std::int64_t element_bytes_;
};

class BroadcastTransfer final : public CopyTransfer {
 public:
  BroadcastTransfer(at::Tensor tensor, int root, int rank)
      : CopyTransfer(Collective::broadcast, tensor, root),
        tensor_(std::move(tensor)),
        is_root_(root == rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    if (is_root_) copy(place, at(tensor_, chunk), chunk);
  }
  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    if (!is_root_) copy(at(tensor_, chunk), places[call().root], chunk);
  }
  const void* payload_in_place() const override { return tensor_.data_ptr(); }

 private:
  at::Tensor tensor_;
  bool is_root_;
};

// all_gather, and gather if there is a root: other ranks have no outputs.
class GatherTransfer final : public CopyTransfer {
 public:
  GatherTransfer(Collective collective, std::vector<at::Tensor> outputs, at::Tensor input, int root)
      : CopyTransfer(collective, input, root),
        outputs_(std::move(outputs)),
        input_(std::move(input)) {}

  void copy_in(Chunk chunk, std::byte* place) override { copy(place, at(input_, chunk), chunk); }
  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    for (std::size_t rank = 0; rank < outputs_.size(); ++rank) {
      copy(at(outputs_[rank], chunk), places[rank], chunk);
    }
  }
  const void* payload_in_place() const override { return input_.data_ptr(); }

 private:
  std::vector<at::Tensor> outputs_;
  at::Tensor input_;
};

// Root shows, one after the other, its pieces for rank 0, rank 1 and so on.
class ScatterTransfer final : public CopyTransfer {
 public:
  ScatterTransfer(at::Tensor output, std::vector<at::Tensor> inputs, int root, int rank, int size)
      : CopyTransfer(Collective::scatter, output, root, size),
        output_(std::move(output)),
        inputs_(std::move(inputs)),
        rank_(rank) {}

  void copy_in(Chunk chunk, std::byte* place) override {
    for (const auto& input : inputs_) {
      copy(place, at(input, chunk), chunk);
      place += bytes(chunk);
    }
  }
  void combine(Chunk chunk, std::span<std::byte* const> places) override {
    copy(at(output_, chunk), places[call().root] + rank_ * bytes(chunk), chunk);
  }

 private:
  at::Tensor output_;
  std::vector<at::Tensor> inputs_;
  int rank_;
};

class MeetingTransfer final : public Transfer {
 public:
  explicit MeetingTransfer(const Call& call) : Transfer(call, 0) {}
  void copy_in(Chunk, std::byte*) override {}
  void combine(Chunk, std::span<std::byte* const>) override {}
};

}  // namespace

std::shared_ptr<Transfer> broadcast_transfer(at::Tensor tensor, int root, int rank) {
  return std::make_shared<BroadcastTransfer>(std::move(tensor), root, rank);
}

std::shared_ptr<Transfer> all_gather_transfer(std::vector<at::Tensor> outputs, at::Tensor input) {
  return std::make_shared<GatherTransfer>(Collective::all_gather, std::move(outputs),
                                          std::move(input), -1);
}

std::shared_ptr<Transfer> gather_transfer(std::vector<at::Tensor> outputs, at::Tensor input,
                                          int root) {
  return std::make_shared<GatherTransfer>(Collective::gather, std::move(outputs), std::move(input),
                                          root);
}

std::shared_ptr<Transfer> scatter_transfer(at::Tensor output, std::vector<at::Tensor> inputs,
                                           int root, int rank, int size) {
  return std::make_shared<ScatterTransfer>(std::move(output), std::move(inputs), root, rank, size);
}

std::shared_ptr<Transfer> meeting_transfer(const Call& call) {
  return std::make_shared<MeetingTransfer>(call);
}

}  // namespace lockstep::memory
