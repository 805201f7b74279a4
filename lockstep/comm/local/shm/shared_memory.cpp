// SPDX-License-Identifier: BSD-3-Clause
// Makes and maps memory, keeps the mappings of shared tensors, and finds tensors by address.
#include "lockstep/comm/local/shm/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/core/system_error.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kHugePage = 2 * 1024 * 1024;
constexpr double kMebibyte = 1024 * 1024;

}  // namespace

Mapping::Mapping(int fd, std::size_t bytes) : bytes_(bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw BackendError(fmt::format(
        "cannot map {:.1f} MiB of shared memory: {}; raise the limit of the address space (ulimit "
        "-v), or use fewer ranks or a smaller model",
        bytes / kMebibyte, reason_of(errno)));
  }
  data_ = static_cast<std::byte*>(address);
  if (bytes >= kHugePage) {
    // Both calls only save time, and older kernels know neither. The pages are filled in now, since
    // a page fault in the middle of a step would make every peer wait.
    ::madvise(address, bytes, MADV_HUGEPAGE);
    ::madvise(address, bytes, MADV_POPULATE_WRITE);
  }
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

UniqueFd make_memory(std::size_t bytes, int ranks) {
  const auto available = static_cast<std::size_t>(available_memory());
  const auto count = static_cast<std::size_t>(ranks);
  if (bytes > available / count) {
    const std::string needed =
        ranks == 1
            ? fmt::format("the ranks need {:.1f} MiB of shared memory together", bytes / kMebibyte)
            : fmt::format("{} ranks need {:.1f} MiB of shared memory each, {:.1f} MiB together",
                          ranks, bytes / kMebibyte, bytes / kMebibyte * ranks);
    throw BackendError(
        fmt::format("{}, and {:.1f} MiB are available to this process; use fewer ranks, a smaller "
                    "model, or raise the memory limit",
                    needed, available / kMebibyte));
  }
  UniqueFd fd(::memfd_create("lockstep", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw BackendError(fmt::format("cannot make {:.1f} MiB of shared memory: {}", bytes / kMebibyte,
                                   reason_of(errno)));
  }
  return fd;
}

at::Tensor SharedTensors::adopt(std::uint64_t segment, std::vector<Mapping> mappings, int rank,
                                at::IntArrayRef sizes, const at::TensorOptions& options) {
  void* data = mappings[rank].data();
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({segment, rank, std::move(mappings)});
  }
  return at::from_blob(
      data, sizes, [tensors = shared_from_this(), segment](void*) { tensors->release(segment); },
      options);
}

local::Location SharedTensors::location_of(const void* data, std::int64_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    const Mapping& own = entry.mappings[entry.rank];
    if (address < own.data() || address + bytes > own.data() + own.size()) continue;
    return {entry.segment, address - own.data()};
  }
  return {};
}

std::byte* SharedTensors::address(int rank, const local::Location& location) const {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry.segment == location.segment) return entry.mappings[rank].data() + location.offset;
  }
  return nullptr;
}

void SharedTensors::release(std::uint64_t segment) {
  Entry gone;
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.segment == segment; });
  gone = std::move(*entry);
  entries_.erase(entry);
}

}  // namespace lockstep::shm
