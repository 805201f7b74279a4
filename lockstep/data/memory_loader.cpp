// SPDX-License-Identifier: BSD-3-Clause
// Copies the rows of each batch, through pinned memory to a GPU.
#include "lockstep/data/memory_loader.h"

#include <cstdint>
#include <cstring>
#include <span>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

// Random rows miss the TLB at every page: huge pages make gathering them a quarter cheaper. If the
// kernel has none, nothing changes.
void request_huge_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + tensor.nbytes()) / kHugePage * kHugePage;
  if (!tensor.device().is_cpu() || first >= last) return;
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  // The pages are already in use: with the advice alone they would wait for the kernel's background
  // thread.
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1; not in every libc's headers
  ::madvise(reinterpret_cast<void*>(first), last - first, kCollapse);
}

// Copies rows of a contiguous CPU tensor, by their bytes, one by one: index_select takes two to
// three times as long for batches of this size.
at::Tensor gather_rows(const at::Tensor& source, std::span<const std::size_t> rows, bool pinned) {
  auto sizes = source.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(rows.size());
  at::Tensor result = at::empty(sizes, source.options().pinned_memory(pinned));
  const auto total = static_cast<std::size_t>(source.size(0));
  const std::size_t row_bytes = total == 0 ? 0 : source.nbytes() / total;
  const auto* from = static_cast<const std::byte*>(source.data_ptr());
  auto* to = static_cast<std::byte*>(result.data_ptr());
  for (const std::size_t row : rows) {
    std::memcpy(to, from + row * row_bytes, row_bytes);
    to += row_bytes;
  }
  return result;
}

at::Tensor take_rows(const at::Tensor& source, std::span<std::size_t> rows, at::Device device) {
  if (source.device().is_cpu()) {
    const bool pinned = device.is_cuda();
    return gather_rows(source, rows, pinned).to(device, /*non_blocking=*/pinned);
  }
  static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
  const at::Tensor index = at::from_blob(rows.data(), static_cast<std::int64_t>(rows.size()),
                                         at::TensorOptions(at::kLong));
  return source.index_select(0, index.to(source.device())).to(device, /*non_blocking=*/true);
}

}  // namespace

MemoryLoader::MemoryLoader(at::Tensor data, at::Tensor target, std::unique_ptr<Sampler> sampler,
                           const MemoryLoaderOptions& options)
    : data_(std::move(data)),
      target_(std::move(target)),
      sampler_(std::move(sampler)),
      options_(options) {
  if (options_.batch_size == 0) {
    throw UsageError({.component = "MemoryLoader"}, "batch_size is 0", "give at least 1");
  }
  if (data_.dim() == 0 || target_.dim() == 0 || data_.size(0) != target_.size(0)) {
    throw UsageError(
        {.component = "MemoryLoader"},
        fmt::format("data of shape [{}] and target of shape [{}] do not have the same number of "
                    "rows",
                    fmt::join(data_.sizes(), ", "), fmt::join(target_.sizes(), ", ")),
        "give one row per sample in both");
  }
  data_ = usable_on(data_.device(), data_);
  target_ = usable_on(target_.device(), target_);
  request_huge_pages(data_);
}

MemoryLoader::Iterator MemoryLoader::begin() {
  sampler_->reset(c10::nullopt);
  return Iterator([this] { return next(); });
}

std::optional<MemoryLoader::Batch> MemoryLoader::next() {
  const TracedSpan span("data");
  auto rows = sampler_->next(options_.batch_size);
  if (!rows) return std::nullopt;
  const auto total = static_cast<std::size_t>(data_.size(0));
  for (const std::size_t row : *rows) {
    if (row >= total) {
      throw UsageError({.component = "MemoryLoader"},
                       fmt::format("the sampler asks for sample {} of {}", row, total),
                       "make it for the size of this data set");
    }
  }
  return Batch{take_rows(data_, *rows, options_.device),
               take_rows(target_, *rows, options_.device)};
}

}  // namespace lockstep
