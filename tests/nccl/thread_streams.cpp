// SPDX-License-Identifier: BSD-3-Clause
// Implements the CUDA calls of the NCCL stand-in on threads.
#include "nccl/thread_streams.h"

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include <cuda.h>
#include <cuda_runtime.h>

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

ThreadStream& of(void* stream) {
  // CUDA's default stream has no name.
  return stream == nullptr ? thread_stream(0) : *static_cast<ThreadStream*>(stream);
}

}  // namespace

ThreadStream& thread_stream(int number) {
  static std::mutex mutex;
  static auto& streams = *new std::map<int, ThreadStream>;
  const std::lock_guard lock(mutex);
  return streams[number];
}

void ThreadStream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (!started_) std::thread([this] { run(); }).detach();
    started_ = true;
  }
  changed_.notify_all();
}

void ThreadStream::end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void ThreadStream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !work_.empty() || ending_; });
    if (work_.empty()) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    // A GPU is late too: who does not wait for it sees that.
    std::this_thread::sleep_for(50us);
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void ThreadStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

bool ThreadStream::idle() {
  const std::lock_guard lock(mutex_);
  return work_.empty() && !busy_;
}

void StreamEvent::record(ThreadStream& stream) {
  done_ = std::make_shared<std::atomic<bool>>(false);
  stream.enqueue([done = done_] { *done = true; });
}

void StreamEvent::block(ThreadStream& stream) const {
  stream.enqueue([done = done_] {
    while (!*done) std::this_thread::sleep_for(10us);
  });
}

}  // namespace lockstep::testing

// What the stand-in for NCCL uses of CUDA.
using lockstep::testing::of;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  of(stream).enqueue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  auto* word = reinterpret_cast<std::uint32_t*>(address);
  of(stream).enqueue([=] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  auto* flag = reinterpret_cast<std::uint32_t*>(address);
  of(stream).enqueue([=] {
    while (static_cast<std::int32_t>(std::atomic_ref(*flag).load(std::memory_order_acquire) -
                                     value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  });
  return CUDA_SUCCESS;
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  return cudaSuccess;
}

}  // extern "C"
