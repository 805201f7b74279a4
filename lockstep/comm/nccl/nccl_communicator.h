// SPDX-License-Identifier: BSD-3-Clause
// One of NCCL's communicators with a stream of its own. No function blocks but the destructor:
// whoever waits calls advance() again and again. To be used under one lock.
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

namespace lockstep {

// A point in the work of a stream.
using StreamMark = std::shared_ptr<c10::Event>;
// Where the calling thread's current stream on the device is now.
StreamMark mark_of_current_stream(at::Device device);

// Enqueues NCCL's work on the stream.
using NcclLaunch = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t, cudaStream_t)>;

class NcclCommunicator {
 public:
  class Operation {
   public:
    // NCCL's work has been enqueued: end() is where it will be done.
    bool launched() const { return end_ != nullptr; }
    const StreamMark& end() const { return end_; }
    bool done() const { return end_ && end_->query(); }

   private:
    friend class NcclCommunicator;
    NcclLaunch launch_;
    StreamMark after_;
    StreamMark end_;
  };

  // Rank 0 leaves NCCL's id in the store, under the key; the others wait there for it, all of them
  // in a thread that stays behind if it takes longer than anybody waits.
  NcclCommunicator(std::shared_ptr<Store> store, std::string key, int rank, int size,
                   at::Device device, std::chrono::milliseconds timeout);
  // Waits a moment for what is on its way.
  ~NcclCommunicator();

  // Behind those enqueued before, and after that mark.
  std::shared_ptr<Operation> enqueue(StreamMark after, NcclLaunch launch);
  // Once true, ranks have met and operations go on.
  bool ready() const { return state_ == State::ready; }
  // BackendError with what NCCL says; it is final.
  void advance();
  // Ends all that is on its way, on this rank. NCCL may have to wait for the device until it is
  // done with that: a thread of its own does.
  void abort() noexcept;

  const c10::Stream& stream() const { return stream_; }

 private:
  enum class State { waiting_for_id, joining, ready, failed };

  void launch_first();
  void join();
  // Whether NCCL is done with what it was told last.
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
  // NCCL has been told the first one of the queue.
  bool launching_ = false;
};

}  // namespace lockstep
