// SPDX-License-Identifier: BSD-3-Clause
// Transfers of the collectives that copy the ranks' elements unchanged, and of those that move
// none.
#include <cstring>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/local/transfers.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/kernels/stream_copy.h"

namespace lockstep::local {
namespace {

// More bytes than this would only pass through the caches on their way.
constexpr std::size_t kStreamed = 4 * 1024 * 1024;

// Copies between tensors and payloads whose elements have the same size.
class CopyTransfer : public Transfer {
 protected:
  CopyTransfer(const Call& call, const HostTensor& like, int pieces = 1)
      : Transfer(call, like.element_bytes() * pieces), element_bytes_(like.element_bytes()) {}

  std::int64_t bytes(ElementRange chunk) const { return chunk.count * element_bytes_; }
  std::byte* at(const HostTensor& tensor, ElementRange chunk) const {
    return tensor.data() + chunk.begin * element_bytes_;
  }
  void copy(std::byte* to, const std::byte* from, ElementRange chunk) const {
    const auto count = static_cast<std::size_t>(bytes(chunk));
    if (to == from) return;  // an output may be the input itself
    if (count < kStreamed) {
      std::memcpy(to, from, count);
    } else {
      stream_copy(to, from, count);
      finish_streaming();
    }
  }

 private:
  std::int64_t element_bytes_;
};

class BroadcastTransfer final : public CopyTransfer {
 public:
  BroadcastTransfer(const Call& call, HostTensor tensor, int rank)
      : CopyTransfer(call, tensor), tensor_(std::move(tensor)), is_root_(call.root == rank) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    if (is_root_) copy(payload, at(tensor_, chunk), chunk);
  }
  void combine(ElementRange chunk, std::span<std::byte* const> payloads) override {
    if (!is_root_) copy(at(tensor_, chunk), payloads[call().root], chunk);
  }
  const void* payload_in_place() const override { return tensor_.data(); }

 private:
  HostTensor tensor_;
  bool is_root_;
};

// all_gather, or gather if there is a root; then other ranks have no outputs.
class GatherTransfer final : public CopyTransfer {
 public:
  GatherTransfer(const Call& call, std::vector<HostTensor> outputs, HostTensor input)
      : CopyTransfer(call, input), outputs_(std::move(outputs)), input_(std::move(input)) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    copy(payload, at(input_, chunk), chunk);
  }
  void combine(ElementRange chunk, std::span<std::byte* const> payloads) override {
    for (std::size_t rank = 0; rank < outputs_.size(); ++rank) {
      copy(at(outputs_[rank], chunk), payloads[rank], chunk);
    }
  }
  const void* payload_in_place() const override { return input_.data(); }

 private:
  std::vector<HostTensor> outputs_;
  HostTensor input_;
};

// Root's payload is its tensors for rank 0, rank 1 and so on, one after the other.
class ScatterTransfer final : public CopyTransfer {
 public:
  ScatterTransfer(const Call& call, HostTensor output, std::vector<HostTensor> inputs, int rank,
                  int size)
      : CopyTransfer(call, output, size),
        output_(std::move(output)),
        inputs_(std::move(inputs)),
        rank_(rank) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    for (const auto& input : inputs_) {
      copy(payload, at(input, chunk), chunk);
      payload += bytes(chunk);
    }
  }
  void combine(ElementRange chunk, std::span<std::byte* const> payloads) override {
    copy(at(output_, chunk), payloads[call().root] + rank_ * bytes(chunk), chunk);
  }

 private:
  HostTensor output_;
  std::vector<HostTensor> inputs_;
  int rank_;
};

class BarrierTransfer final : public Transfer {
 public:
  explicit BarrierTransfer(const Call& call) : Transfer(call, 0) {}
  void copy_in(ElementRange, std::byte*) override {}
  void combine(ElementRange, std::span<std::byte* const>) override {}
};

// The start of an all_to_all: ranks compare the sizes that they send and expect.
class ExchangeAgreement final : public Transfer {
 public:
  ExchangeAgreement(std::vector<std::int64_t> sizes, std::string_view backend, int rank)
      : Transfer({.collective = Collective::all_to_all,
                  .type = at::kLong,
                  .elements = static_cast<std::int64_t>(sizes.size())},
                 sizeof(std::int64_t)),
        sizes_(std::move(sizes)),
        backend_(backend),
        rank_(rank) {}

  void copy_in(ElementRange chunk, std::byte* payload) override {
    std::memcpy(payload, sizes_.data() + chunk.begin,
                static_cast<std::size_t>(chunk.count) * sizeof(std::int64_t));
  }

  // All sizes are in one chunk: it would take sixteen thousand ranks to fill it.
  void combine(ElementRange, std::span<std::byte* const> payloads) override {
    std::vector<const std::int64_t*> sizes;
    for (const std::byte* payload : payloads) {
      sizes.push_back(reinterpret_cast<const std::int64_t*>(payload));
    }
    if (const std::string fault = exchange_fault(sizes); !fault.empty()) {
      throw UsageError({.component = backend_,
                        .operation = title(call()),
                        .rank = rank_,
                        .size = static_cast<int>(payloads.size())},
                       fault);
    }
  }

 private:
  std::vector<std::int64_t> sizes_;
  std::string backend_;
  int rank_;
};

}  // namespace

std::shared_ptr<Transfer> broadcast_transfer(const Call& call, HostTensor tensor, int rank) {
  return std::make_shared<BroadcastTransfer>(call, std::move(tensor), rank);
}

std::shared_ptr<Transfer> gather_transfer(const Call& call, std::vector<HostTensor> outputs,
                                          HostTensor input) {
  return std::make_shared<GatherTransfer>(call, std::move(outputs), std::move(input));
}

std::shared_ptr<Transfer> scatter_transfer(const Call& call, HostTensor output,
                                           std::vector<HostTensor> inputs, int rank, int size) {
  return std::make_shared<ScatterTransfer>(call, std::move(output), std::move(inputs), rank, size);
}

std::shared_ptr<Transfer> barrier_transfer(const Call& call) {
  return std::make_shared<BarrierTransfer>(call);
}

std::shared_ptr<Transfer> exchange_agreement(std::vector<std::int64_t> sizes,
                                             std::string_view backend, int rank) {
  return std::make_shared<ExchangeAgreement>(std::move(sizes), backend, rank);
}

}  // namespace lockstep::local
