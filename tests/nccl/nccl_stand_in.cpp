// SPDX-License-Identifier: BSD-3-Clause
// A libnccl.so.2 for tests on one GPU, or on none: ranks may share a device. It does what the nccl
// backend asks for, on streams as NCCL does, and carries the bytes through host memory: a thread of
// each communicator waits for the stream to come to the operation, copies, exchanges with the peers
// over shared memory, and lets the stream go on. No product of any kind, and slow.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stand_in_sums.h"
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace std::chrono_literals;

constexpr std::size_t kBoxBytes = 1 << 16;
constexpr int kMaxRanks = 8;

// What one rank has for another one, a piece at a time.
struct Mailbox {
  std::atomic<std::uint32_t> full;
  std::uint32_t bytes;
  std::byte data[kBoxBytes];
};
struct Segment {
  std::atomic<int> joined;
  Mailbox boxes[kMaxRanks][kMaxRanks];  // [from][to]
};

struct ncclComm {
  int rank = 0;
  int size = 0;
  int device = 0;
  std::string name;
  Segment* segment = nullptr;
  std::atomic<bool> aborted = false;
  std::atomic<bool> ready = false;
  // Sums that were made for one operation, by their number.
  std::map<int, double> scales;
  int ops_made = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool ending = false;
  bool busy = false;
  std::thread thread;
  cudaStream_t copies = nullptr;
  // The operation up to which the stream may go. Never freed: the stream may look at it to the end.
  std::uint32_t* flag = nullptr;
  std::uint32_t told = 0;
};

namespace {

struct Message {
  const std::byte* begin;
  std::size_t bytes;
  int peer;
};

// All pairs at once, so that no order of messages can block.
bool exchange(ncclComm& comm, const std::vector<Bytes>& out, std::vector<Bytes>& in) {
  std::vector<std::size_t> sent(out.size(), 0);
  std::vector<std::size_t> received(in.size(), 0);
  const auto done = [&] {
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (sent[i] < out[i].size() || received[i] < in[i].size()) return false;
    }
    return true;
  };
  while (!done()) {
    bool moved = false;
    for (int peer = 0; peer < comm.size; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      Mailbox& to = comm.segment->boxes[comm.rank][peer];
      if (sent[p] < out[p].size() && to.full.load(std::memory_order_acquire) == 0) {
        to.bytes = static_cast<std::uint32_t>(std::min(kBoxBytes, out[p].size() - sent[p]));
        std::memcpy(to.data, out[p].data() + sent[p], to.bytes);
        sent[p] += to.bytes;
        to.full.store(1, std::memory_order_release);
        moved = true;
      }
      Mailbox& from = comm.segment->boxes[peer][comm.rank];
      if (received[p] < in[p].size() && from.full.load(std::memory_order_acquire) == 1) {
        std::memcpy(in[p].data() + received[p], from.data, from.bytes);
        received[p] += from.bytes;
        from.full.store(0, std::memory_order_release);
        moved = true;
      }
    }
    if (comm.aborted) return false;
    if (!moved) std::this_thread::sleep_for(20us);
  }
  return true;
}

void run(ncclComm* comm) {
  cudaSetDevice(comm->device);
  cudaStreamCreateWithFlags(&comm->copies, cudaStreamNonBlocking);
  comm->segment->joined.fetch_add(1);
  while (comm->segment->joined.load() < comm->size && !comm->aborted && !comm->ending) {
    std::this_thread::sleep_for(200us);
  }
  ::shm_unlink(comm->name.c_str());
  comm->ready = true;
  std::unique_lock lock(comm->mutex);
  while (true) {
    comm->changed.wait(lock, [&] { return !comm->jobs.empty() || comm->ending; });
    if (comm->jobs.empty()) return;
    const auto job = std::move(comm->jobs.front());
    comm->jobs.pop_front();
    comm->busy = true;
    lock.unlock();
    job();
    lock.lock();
    comm->busy = false;
    comm->changed.notify_all();
  }
}

void copy(ncclComm& comm, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, comm.copies);
  cudaStreamSynchronize(comm.copies);
}

// A function of the driver's, which no program is linked to; the tests' own devices have it too.
CUresult wait_in_stream(CUstream stream, CUdeviceptr place, cuuint32_t value, unsigned flags) {
  static const auto function = [] {
    constexpr const char* kName = "cuStreamWaitValue32_v2";
    void* found = ::dlsym(RTLD_DEFAULT, kName);
    if (found == nullptr) found = ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), kName);
    return reinterpret_cast<decltype(&wait_in_stream)>(found);
  }();
  return function(stream, place, value, flags);
}

// Of what the stream does next; the thread does it when the stream has come to it.
void enqueue(ncclComm* comm, cudaStream_t stream, std::function<void()> work) {
  cudaEvent_t come = nullptr;
  cudaEventCreateWithFlags(&come, cudaEventDisableTiming);
  cudaEventRecord(come, stream);
  const std::uint32_t ticket = ++comm->told;
  wait_in_stream(stream, reinterpret_cast<CUdeviceptr>(comm->flag), ticket,
                 CU_STREAM_WAIT_VALUE_GEQ);
  const std::lock_guard lock(comm->mutex);
  comm->jobs.push_back([=, work = std::move(work)] {
    while (cudaEventQuery(come) == cudaErrorNotReady && !comm->aborted) {
      std::this_thread::sleep_for(10us);
    }
    if (!comm->aborted) work();
    cudaEventDestroy(come);
    std::atomic_ref(*comm->flag).store(ticket, std::memory_order_release);
  });
  comm->changed.notify_all();
}

// Messages between ncclGroupStart and ncclGroupEnd are one exchange.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> out;
  std::vector<Message> in;
};
thread_local Group group;

void flush_messages() {
  if (group.comm == nullptr) return;
  ncclComm* comm = group.comm;
  enqueue(comm, group.stream, [comm, out = group.out, in = group.in] {
    std::vector<Bytes> outgoing(static_cast<std::size_t>(comm->size));
    std::vector<Bytes> incoming(outgoing.size());
    for (const Message& message : out) {
      Bytes& bytes = outgoing[static_cast<std::size_t>(message.peer)];
      bytes.resize(message.bytes);
      copy(*comm, bytes.data(), message.begin, message.bytes);
    }
    for (const Message& message : in) {
      incoming[static_cast<std::size_t>(message.peer)].resize(message.bytes);
    }
    if (!exchange(*comm, outgoing, incoming)) return;
    for (const Message& message : in) {
      copy(*comm, const_cast<std::byte*>(message.begin),
           incoming[static_cast<std::size_t>(message.peer)].data(), message.bytes);
    }
  });
  group.comm = nullptr;
  group.out.clear();
  group.in.clear();
}

void reduce_to(ncclComm* comm, const void* send, void* receive, std::size_t count,
               ncclDataType_t type, int op, int root, cudaStream_t stream) {
  const auto scale = comm->scales.find(op);
  const double factor = scale == comm->scales.end() ? 1 : scale->second;
  enqueue(comm, stream, [=] {
    const std::size_t bytes = count * width(type);
    Bytes own(bytes);
    copy(*comm, own.data(), send, bytes);
    std::vector<Bytes> outgoing(static_cast<std::size_t>(comm->size));
    std::vector<Bytes> incoming(outgoing.size());
    for (int peer = 0; peer < comm->size; ++peer) {
      if (root < 0 || root == peer) outgoing[static_cast<std::size_t>(peer)] = own;
      if (root < 0 || root == comm->rank) incoming[static_cast<std::size_t>(peer)].resize(bytes);
    }
    if (!exchange(*comm, outgoing, incoming)) return;
    if (root >= 0 && root != comm->rank) return;
    reduce(incoming, count, type, op, factor);
    copy(*comm, receive, incoming[0].data(), bytes);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "/nccl-stand-in-%08x%08x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = ranks;
  made->name = id.internal;
  cudaGetDevice(&made->device);
  const int file = ::shm_open(made->name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Segment)) != 0) return ncclSystemError;
  made->segment = static_cast<Segment*>(
      ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ::close(file);
  cudaHostAlloc(reinterpret_cast<void**>(&made->flag), sizeof(std::uint32_t),
                cudaHostAllocPortable);
  *made->flag = 0;
  made->thread = std::thread(run, made);
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->ready ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an error of the stand-in's";
}
const char* ncclGetLastError(ncclComm_t) {
  return "nothing more is known";
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::unique_lock lock(comm->mutex);
  comm->changed.wait(lock, [&] { return (comm->jobs.empty() && !comm->busy) || comm->aborted; });
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->mutex);
    comm->ending = true;
  }
  comm->changed.notify_all();
  comm->thread.join();
  cudaStreamDestroy(comm->copies);
  ::munmap(comm->segment, sizeof(Segment));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  ::shm_unlink(comm->name.c_str());
  return ncclCommDestroy(comm);
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group.depth == 0) flush_messages();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  reduce_to(comm, send, receive, count, type, op, -1, stream);
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  reduce_to(comm, send, receive, count, type, op, root, stream);
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  group.comm = comm;
  group.stream = stream;
  group.out.push_back({static_cast<const std::byte*>(send), count * width(type), peer});
  if (group.depth == 0) flush_messages();
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  group.comm = comm;
  group.stream = stream;
  group.in.push_back({static_cast<const std::byte*>(receive), count * width(type), peer});
  if (group.depth == 0) flush_messages();
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  ncclGroupStart();
  if (comm->rank == root) {
    for (int peer = 0; peer < comm->size; ++peer) {
      if (peer != root) ncclSend(send, count, type, peer, comm, stream);
    }
  } else {
    ncclRecv(receive, count, type, root, comm, stream);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  const int number = ncclNumOps + ++comm->ops_made;
  double scale = 0;
  if (type == ncclFloat64) std::memcpy(&scale, scalar, sizeof scale);
  if (type == ncclFloat32) scale = *static_cast<const float*>(scalar);
  if (type == ncclFloat16) scale = __half2float(*static_cast<const __half*>(scalar));
  if (type == ncclBfloat16) scale = __bfloat162float(*static_cast<const __nv_bfloat16*>(scalar));
  comm->scales[number] = scale;
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  comm->scales.erase(op);
  return ncclSuccess;
}

}  // extern "C"
