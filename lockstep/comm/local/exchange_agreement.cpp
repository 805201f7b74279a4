// SPDX-License-Identifier: BSD-3-Clause
// The start of an all_to_all: ranks compare the sizes that they send and expect.
#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/exchange_sizes.h"
#include "lockstep/comm/local/transfers.h"
#include "lockstep/core/error.h"

namespace lockstep::local {
namespace {

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
      throw UsageError(where_in(backend_, title(call()), rank_, static_cast<int>(payloads.size())) +
                       fault);
    }
  }

 private:
  std::vector<std::int64_t> sizes_;
  std::string backend_;
  int rank_;
};

}  // namespace

std::shared_ptr<Transfer> exchange_agreement(std::vector<std::int64_t> sizes,
                                             std::string_view backend, int rank) {
  return std::make_shared<ExchangeAgreement>(std::move(sizes), backend, rank);
}

}  // namespace lockstep::local
