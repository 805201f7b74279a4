// SPDX-License-Identifier: BSD-3-Clause
// Joins ranks over MPI: sends and receives messages by its non-blocking calls, and polls for their
// end, since MPI makes progress only while a thread polls it.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/remote/comparing_transport.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/mpi_functions.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {
namespace {

using remote::Messenger;
using remote::Transmission;
using remote::Transport;

// MPI counts bytes with ints.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 30;
// Lower tags belong to single messages.
constexpr int kFirstTag = 64;
// A waiting thread counts its polls since something arrived: up to kBusyPolls it polls again at
// once, up to kYieldingPolls it yields first, and then it sleeps.
constexpr int kBusyPolls = 50;
constexpr int kYieldingPolls = 2000;
constexpr std::chrono::microseconds kPollInterval(50);

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MpiFunctions::get().error_string(code, text.data(), &length);
  throw BackendError(std::string(text.data(), static_cast<std::size_t>(length)));
}

// The number of polls since something arrived.
using IdlePolls = std::shared_ptr<std::atomic<int>>;

class MpiTransmission final : public Transmission {
 public:
  // `memory` owns the bytes that are sent and received.
  MpiTransmission(std::shared_ptr<void> memory, IdlePolls idle_polls)
      : memory_(std::move(memory)), idle_polls_(std::move(idle_polls)) {}

  // Splits the bytes in the same way on both sides.
  void send(const std::byte* data, std::int64_t bytes, int to, int tag, MPI_Comm comm) {
    for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
      check(mpi_.isend(data + at, static_cast<int>(std::min(kPieceBytes, bytes - at)),
                       mpi_.byte_type, to, tag, comm, &requests_.emplace_back()));
    }
  }
  void receive(std::byte* data, std::int64_t bytes, int from, int tag, MPI_Comm comm) {
    for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
      check(mpi_.irecv(data + at, static_cast<int>(std::min(kPieceBytes, bytes - at)),
                       mpi_.byte_type, from, tag, comm, &requests_.emplace_back()));
    }
  }
  void broadcast(std::byte* data, std::int64_t bytes, int root, MPI_Comm comm) {
    for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
      check(mpi_.ibcast(data + at, static_cast<int>(std::min(kPieceBytes, bytes - at)),
                        mpi_.byte_type, root, comm, &requests_.emplace_back()));
    }
  }

  bool done() override {
    int all = 0;
    const auto locked = MpiLibrary::get().lock();
    check(mpi_.testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                       MPI_STATUSES_IGNORE));
    if (all != 0) *idle_polls_ = 0;
    return all != 0;
  }

 private:
  const MpiFunctions& mpi_ = MpiFunctions::get();
  std::shared_ptr<void> memory_;
  IdlePolls idle_polls_;
  std::vector<MPI_Request> requests_;
};

// The number of this MPI's tags, without the tags of single messages.
int tags_for_exchanges() {
  const MpiFunctions& mpi = MpiFunctions::get();
  const auto locked = MpiLibrary::get().lock();
  int* most = nullptr;
  int is_known = 0;
  check(mpi.comm_get_attr(mpi.comm_world, MPI_TAG_UB, static_cast<void*>(&most), &is_known));
  constexpr int kAtLeast = 32'767;
  return (is_known != 0 ? *most : kAtLeast) - kFirstTag;
}

std::byte* begin(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

class MpiMessenger final : public Messenger {
 public:
  explicit MpiMessenger(MPI_Comm comm) : comm_(comm), tags_(tags_for_exchanges()) {
    MpiLibrary::get().begin_use();
  }
  ~MpiMessenger() override {
    const auto locked = MpiLibrary::get().lock();
    MpiFunctions::get().comm_free(&comm_);
    MpiLibrary::get().end_use();
  }

  std::unique_ptr<Transmission> exchange(std::span<const Message> outgoing,
                                         std::span<const Message> incoming,
                                         std::shared_ptr<void> memory) override {
    auto transmission = std::make_unique<MpiTransmission>(std::move(memory), idle_polls_);
    const auto locked = MpiLibrary::get().lock();
    for (const auto& [data, bytes, peer, tag] : incoming) {
      transmission->receive(data, bytes, peer, kFirstTag + tag, comm_);
    }
    for (const auto& [data, bytes, peer, tag] : outgoing) {
      transmission->send(data, bytes, peer, kFirstTag + tag, comm_);
    }
    return transmission;
  }
  int tags() const override { return tags_; }

  std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) override {
    auto transmission = make_transmission(bytes);
    const auto locked = MpiLibrary::get().lock();
    transmission->broadcast(begin(bytes), bytes.numel(), root, comm_);
    return transmission;
  }

  std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) override {
    auto transmission = make_transmission(bytes);
    const auto locked = MpiLibrary::get().lock();
    transmission->send(begin(bytes), bytes.numel(), to, tag, comm_);
    return transmission;
  }
  std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) override {
    auto transmission = make_transmission(bytes);
    const auto locked = MpiLibrary::get().lock();
    transmission->receive(begin(bytes), bytes.numel(), from, tag, comm_);
    return transmission;
  }

  // MPI splits messages itself, and agrees with the receiver before each.
  std::int64_t chunk_bytes_between_machines() const override { return 64 << 20; }

  // MPI does not report events. It has to be polled, first often and then less often.
  std::uint64_t events() const override { return 0; }
  void wait_for_event(std::uint64_t /*events*/, std::chrono::microseconds at_most) override {
    const int polls = ++*idle_polls_;
    if (polls < kBusyPolls) return;
    if (polls < kYieldingPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min(kPollInterval, at_most));
    }
  }

 private:
  std::unique_ptr<MpiTransmission> make_transmission(const at::Tensor& tensor) const {
    return std::make_unique<MpiTransmission>(std::make_shared<at::Tensor>(tensor), idle_polls_);
  }

  MPI_Comm comm_;
  const int tags_;
  IdlePolls idle_polls_ = std::make_shared<std::atomic<int>>(0);
};

// A communicator of these MPI ranks, in this order. A blocking collective call.
MPI_Comm communicator_of(const std::vector<int>& ranks) {
  const MpiFunctions& mpi = MpiFunctions::get();
  const auto locked = MpiLibrary::get().lock();
  MPI_Group world{};
  MPI_Group members{};
  MPI_Comm comm{};
  check(mpi.comm_group(mpi.comm_world, &world));
  check(mpi.group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members));
  check(mpi.comm_create_group(mpi.comm_world, members, 0, &comm));
  mpi.group_free(&members);
  mpi.group_free(&world);
  // Makes MPI return errors instead of ending the process.
  check(mpi.comm_set_errhandler(comm, mpi.errors_return));
  return comm;
}

// Blocks until all ranks have joined. TimeoutError at the deadline, and what joining.check()
// throws; BackendError if MPI has fewer processes than the group has ranks.
std::unique_ptr<Transport> join(const Membership& membership, remote::Joining& joining,
                                const Deadline& deadline) {
  const auto look = [&] { joining.check(); };
  MpiLibrary& mpi = *MpiLibrary::in_time(
      deadline, [] { return &MpiLibrary::get(); }, look);
  if (mpi.size() < membership.world_size) {
    throw BackendError(
        joining.context(),
        fmt::format("MPI knows of {} process{} only", mpi.size(), mpi.size() == 1 ? "" : "es"),
        fmt::format("start the ranks with mpirun, or with srun --mpi=pmix, of the MPI that this "
                    "process loaded ({})",
                    MpiLibrary::version()));
  }
  // This group's ranks may be some of MPI's, in another order.
  std::vector<int> ranks;
  for (const auto& rank : exchange(membership, "mpi", std::to_string(mpi.rank()), deadline)) {
    ranks.push_back(std::stoi(rank));
  }
  MPI_Comm comm = MpiLibrary::in_time(
      deadline, [ranks] { return communicator_of(ranks); }, look);
  return std::make_unique<remote::ComparingTransport>(std::make_unique<MpiMessenger>(comm),
                                                      membership.rank, membership.world_size);
}

}  // namespace

std::shared_ptr<Backend> make_mpi_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name) {
  return remote::make_remote_backend(
      name, membership, options,
      {.check = [](const Membership&, const ErrorContext&) { MpiLibrary::load(); }, .join = join});
}

}  // namespace lockstep
