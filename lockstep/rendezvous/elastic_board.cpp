// SPDX-License-Identifier: BSD-3-Clause
// Makes and maps the board's file.
#include "lockstep/rendezvous/elastic_board.h"

#include <array>
#include <atomic>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// A new file's zeros are a valid board.
struct ElasticBoard::Contents {
  std::atomic<int> generation;
  // One more than each member's progress.
  std::array<std::atomic<std::int64_t>, kMostMembers> progress;
  // One more than the generation in which each member has trained.
  std::array<std::atomic<int>, kMostMembers> trained_in;

  static_assert(std::atomic<int>::is_always_lock_free);
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
};

void ElasticBoard::Unmap::operator()(Contents* contents) const {
  ::munmap(contents, sizeof(Contents));
}

ElasticBoard::ElasticBoard(int fd) {
  void* address = ::mmap(nullptr, sizeof(Contents), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw BackendError(ErrorContext{},
                       fmt::format("cannot map {} bytes, the board of an elastic job: {}",
                                   sizeof(Contents), reason_of(errno)),
                       "raise the limit of the address space (ulimit -v)");
  }
  contents_.reset(static_cast<Contents*>(address));
}

ElasticBoard ElasticBoard::create(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // Allocated now: a full disk would otherwise be a SIGBUS later.
  const int error = file ? ::posix_fallocate(file.get(), 0, sizeof(Contents)) : errno;
  if (error != 0) {
    throw BackendError(
        ErrorContext{},
        fmt::format("cannot make {}, the board of an elastic job: {}", path, reason_of(error)),
        "set TMPDIR to a folder that can be written to and has room");
  }
  return ElasticBoard(file.get());
}

ElasticBoard ElasticBoard::open(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) {
    throw BackendError(
        ErrorContext{},
        fmt::format("cannot open {}, the board of an elastic job: {}", path, reason_of(errno)),
        "is its launcher, `lockstep run --elastic`, still running?");
  }
  if (found.st_size != sizeof(Contents)) {
    throw BackendError(
        ErrorContext{},
        fmt::format("{} is not the board of an elastic job: it has {} bytes instead of {}", path,
                    found.st_size, sizeof(Contents)),
        "use one version of Lockstep for the program and its launcher");
  }
  return ElasticBoard(file.get());
}

int ElasticBoard::generation() const noexcept {
  return contents_->generation.load(std::memory_order_acquire);
}

void ElasticBoard::set_generation(int number) noexcept {
  contents_->generation.store(number, std::memory_order_release);
}

std::int64_t ElasticBoard::progress(int member) const noexcept {
  const auto index = static_cast<std::size_t>(member);
  return contents_->progress[index].load(std::memory_order_relaxed) - 1;
}

void ElasticBoard::set_progress(int member, std::int64_t progress) noexcept {
  const auto index = static_cast<std::size_t>(member);
  contents_->progress[index].store(progress + 1, std::memory_order_relaxed);
}

int ElasticBoard::trained_in(int member) const noexcept {
  const auto index = static_cast<std::size_t>(member);
  return contents_->trained_in[index].load(std::memory_order_relaxed) - 1;
}

void ElasticBoard::set_trained_in(int member, int generation) noexcept {
  const auto index = static_cast<std::size_t>(member);
  contents_->trained_in[index].store(generation + 1, std::memory_order_relaxed);
}

std::string members_key(int generation) {
  return fmt::format("lockstep/members/{}", generation);
}

std::string encode_members(const OpenGeneration& generation) {
  return pack(generation.members, generation.store);
}

OpenGeneration decode_members(std::string_view bytes) {
  OpenGeneration generation;
  unpack(bytes, generation.members, generation.store);
  return generation;
}

std::string join_key(int member) {
  return fmt::format("lockstep/join/{}", member);
}

std::string generation_prefix(int generation) {
  return fmt::format("generation/{}/", generation);
}

}  // namespace lockstep
