// SPDX-License-Identifier: BSD-3-Clause
// An NCCL communicator with a stream of its own. Only the destructor blocks; a thread that waits
// calls advance() repeatedly. Not thread-safe: callers share one lock.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "lockstep/comm/nccl/nccl_library.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep::nccl {

// A point in a stream's work.
using StreamMark = std::shared_ptr<c10::Event>;
// The present point in the work of the calling thread's current stream on the device.
StreamMark mark_of_current_stream(at::Device device);

// Enqueues NCCL's work on the stream.
using NcclLaunch = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t, cudaStream_t)>;

class NcclCommunicator {
 public:
  class Operation {
   public:
    // Once NCCL's work has been enqueued, end() is the point at which it is done.
    bool launched() const { return end_ != nullptr; }
    const StreamMark& end() const { return end_; }
    bool done() const { return end_ && end_->query(); }

   private:
    friend class NcclCommunicator;
    NcclLaunch launch_;
    StreamMark after_;
    StreamMark end_;
  };

  // Rank 0 puts NCCL's id into the store, under the key, and the other ranks wait there for it.
  // Each does so in a thread, which stays behind if the store takes longer than any caller waits.
  NcclCommunicator(std::shared_ptr<Store> store, std::string key, int rank, int size,
                   at::Device device, std::chrono::milliseconds timeout);
  // Waits briefly for work under way.
  ~NcclCommunicator();

  // Enqueues an operation behind earlier ones, and after the mark.
  std::shared_ptr<Operation> enqueue(StreamMark after, NcclLaunch launch);
  // Once true, the ranks are connected and operations proceed.
  bool ready() const { return state_ == State::ready; }
  // BackendError with NCCL's message; the error is final.
  void advance();
  // Ends all work under way, on this rank. NCCL may have to wait until the device is done with it,
  // so a separate thread does that.
  void abort() noexcept;

  const c10::Stream& stream() const { return stream_; }

 private:
  enum class State { waiting_for_id, joining, ready, failed };

  void launch_first();
  void join();
  // Whether NCCL has finished the last request.
  bool idle();
  void check(ncclResult_t result, const char* what);

  const NcclLibrary& nccl_ = NcclLibrary::get();
  int rank_;
  int size_;
  at::Device device_;
  c10::Stream stream_;
  State state_ = State::waiting_for_id;
  std::string failure_;
  std::future<ncclUniqueId> id_;
  ncclComm_t communicator_ = nullptr;
  std::deque<std::shared_ptr<Operation>> queue_;
  // NCCL has been given the first operation of the queue.
  bool launching_ = false;
};

}  // namespace lockstep::nccl
