// SPDX-License-Identifier: BSD-3-Clause
// Joins, launches, polls and aborts an NCCL communicator without blocking.
#include "lockstep/comm/nccl/nccl_communicator.h"

#include <cstring>
#include <thread>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep::nccl {
namespace {

using namespace std::chrono_literals;

// How long the last messages may take to leave when a communicator ends.
constexpr auto kLinger = 10s;

c10::Stream new_stream(at::Device device) {
  // High priority, so that buckets leave while backward computes.
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
}

// The communicator's NCCL id, from rank 0 over the store.
ncclUniqueId exchange_id(Store& store, const std::string& key, int rank,
                         std::chrono::milliseconds timeout) {
  ncclUniqueId id{};
  if (rank == 0) {
    const ncclResult_t result = NcclLibrary::get().get_unique_id(&id);
    if (result != ncclSuccess) throw BackendError("NCCL cannot make an id for the ranks");
    store.set(key, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const std::string text = store.get(key, Deadline::after(timeout));
  if (text.size() != sizeof id.internal) throw BackendError("rank 0 stored no NCCL id");
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

std::future<ncclUniqueId> agree_on_id(std::shared_ptr<Store> store, std::string key, int rank,
                                      std::chrono::milliseconds timeout) {
  return ask_in_thread([store = std::move(store), key = std::move(key), rank, timeout] {
    return exchange_id(*store, key, rank, timeout);
  });
}

}  // namespace

StreamMark mark_of_current_stream(at::Device device) {
  auto mark = std::make_shared<c10::Event>(device.type());
  mark->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return mark;
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<Store> store, std::string key, int rank,
                                   int size, at::Device device, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      device_(device),
      stream_(new_stream(device)),
      id_(agree_on_id(std::move(store), std::move(key), rank, timeout)) {}

NcclCommunicator::~NcclCommunicator() try {
  if (communicator_ == nullptr) return;
  const c10::DeviceGuard guard(device_);
  const Deadline deadline = Deadline::after(kLinger);
  ncclResult_t state = nccl_.finalize(communicator_);
  while (state == ncclInProgress && !deadline.passed()) {
    nccl_.async_error(communicator_, &state);
    std::this_thread::sleep_for(1ms);
  }
  if (state == ncclSuccess) {
    nccl_.destroy(communicator_);
  } else {
    nccl_.abort(communicator_);
  }
} catch (const std::exception&) {
  // The device no longer accepts work.
}

std::shared_ptr<NcclCommunicator::Operation> NcclCommunicator::enqueue(StreamMark after,
                                                                       NcclLaunch launch) {
  auto operation = std::make_shared<Operation>();
  operation->after_ = std::move(after);
  operation->launch_ = std::move(launch);
  queue_.push_back(operation);
  advance();
  return operation;
}

void NcclCommunicator::advance() {
  if (state_ == State::failed) throw BackendError(failure_);
  const c10::DeviceGuard guard(device_);
  if (state_ == State::waiting_for_id && id_.wait_for(0s) == std::future_status::ready) join();
  if (state_ == State::joining && idle()) state_ = State::ready;
  while (state_ == State::ready && !queue_.empty()) {
    if (!launching_) launch_first();
    if (!idle()) return;
    auto end = std::make_shared<c10::Event>(device_.type());
    end->record(stream_);
    Operation& first = *queue_.front();
    first.end_ = std::move(end);
    first.launch_ = nullptr;
    launching_ = false;
    queue_.pop_front();
  }
  if (state_ == State::ready) idle();  // it may have failed since
}

void NcclCommunicator::launch_first() {
  Operation& first = *queue_.front();
  if (first.after_) first.after_->block(stream_);
  launching_ = true;
  check(first.launch_(nccl_, communicator_,
                      static_cast<cudaStream_t>(libtorch::native_handle(stream_))),
        "starting");
}

void NcclCommunicator::join() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  try {
    id = id_.get();
  } catch (const std::exception& error) {
    // The future can be read only once.
    state_ = State::failed;
    failure_ = first_line(error);
    throw;
  }
  state_ = State::joining;
  check(nccl_.init_rank(&communicator_, size_, id, rank_, &config), "joining");
}

bool NcclCommunicator::idle() {
  ncclResult_t state = ncclSuccess;
  check(nccl_.async_error(communicator_, &state), "asking for errors");
  check(state, "working");
  return state != ncclInProgress;
}

void NcclCommunicator::abort() noexcept {
  if (state_ != State::failed) failure_ = "NCCL's communicator was aborted";
  state_ = State::failed;
  queue_.clear();
  if (communicator_ == nullptr) return;
  try {
    leave_to_thread([abort = nccl_.abort, communicator = communicator_, device = device_] {
      try {
        const c10::DeviceGuard guard(device);
        abort(communicator);
      } catch (const std::exception&) {
        // The device no longer accepts work.
      }
    });
  } catch (const BackendError&) {
    // Without a thread, NCCL's work continues until the process ends.
  }
  communicator_ = nullptr;
}

void NcclCommunicator::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  state_ = State::failed;
  failure_ = fmt::format("NCCL {}, {}: {}; {} (set NCCL_DEBUG=INFO for details)", nccl_.version(),
                         what, nccl_.error_string(result), nccl_.last_error(communicator_));
  throw BackendError(failure_);
}

}  // namespace lockstep::nccl
