// SPDX-License-Identifier: BSD-3-Clause
// A libnccl.so.2 for tests on one GPU, or on none: ranks may share a device. It does what the nccl
// backend asks for, on streams as NCCL does, and carries the bytes through host memory: the stream
// copies them there, a thread of each communicator exchanges with the peers over shared memory, and
// the stream copies back. No product of any kind, and slow.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
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
  // The last operation that the stream has come to, and the one up to which it may go. Never freed:
  // the stream may look at them to the end.
  std::uint32_t* come = nullptr;
  std::uint32_t* go = nullptr;
  std::uint32_t tickets = 0;
};

namespace {

// What is sent or received, on the device and in the host memory that it passes through.
struct Piece {
  std::byte* device;
  std::size_t bytes;
  int peer = 0;
  std::byte* host = nullptr;
};
using Pieces = std::vector<Piece>;

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

// Calls nothing of CUDA: a call may wait for the streams, and they for this thread.
void run(ncclComm* comm) {
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

// Functions of the driver's, which no program is linked to; the tests' own devices have them too.
using OnValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
OnValue find_in_driver(const char* name) {
  void* found = ::dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) found = ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name);
  return reinterpret_cast<OnValue>(found);
}

// A tool of tests: what it cannot do ends the program.
void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "NCCL's stand-in: %s failed\n", what);
  std::abort();
}

void write_in_stream(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  static const OnValue write = find_in_driver("cuStreamWriteValue32_v2");
  require(write != nullptr && write(stream, reinterpret_cast<CUdeviceptr>(word), value,
                                    CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS,
          "cuStreamWriteValue32");
}
void wait_in_stream(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  static const OnValue wait = find_in_driver("cuStreamWaitValue32_v2");
  require(wait != nullptr && wait(stream, reinterpret_cast<CUdeviceptr>(word), value,
                                  CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS,
          "cuStreamWaitValue32");
}
void copy_in_stream(cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess,
          "cudaMemcpyAsync");
}

std::uint32_t value_at(std::uint32_t* word) {
  return std::atomic_ref(*word).load(std::memory_order_acquire);
}

// CUDA would free memory of its own as the program exits, while threads still use it.
std::byte* pinned(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "mmap");
  require(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) ==
              cudaSuccess,
          "cudaHostRegister");
  return static_cast<std::byte*>(memory);
}

// Host memory for one operation at a time, which streams use after the communicator has gone. To
// allocate it waits for all streams, so there is some before any stream waits.
class HostMemory {
 public:
  struct Block {
    std::uint32_t* in_use;
    std::byte* begin;
    std::size_t bytes;
  };

  static HostMemory& all() {
    static auto& memory = *new HostMemory;
    return memory;
  }

  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (const Block& block : blocks_) {
      if (block.bytes < bytes || value_at(block.in_use) != 0) continue;
      *block.in_use = 1;
      return block;
    }
    const Block made = make(bytes);
    *made.in_use = 1;
    return made;
  }

 private:
  static constexpr std::size_t kWord = 64;

  HostMemory() {
    for (int i = 0; i < 16; ++i) make(1 << 20);
  }
  Block make(std::size_t bytes) {
    std::byte* memory = pinned(kWord + bytes);
    auto* word = reinterpret_cast<std::uint32_t*>(memory);
    *word = 0;
    return blocks_.emplace_back(Block{word, memory + kWord, bytes});
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// The work is the thread's, when the stream has copied what is sent; then the stream copies what
// is received.
void enqueue(ncclComm* comm, cudaStream_t stream, Pieces out, Pieces in,
             std::function<void(const Pieces& out, const Pieces& in)> work) {
  std::size_t bytes = 0;
  for (const auto* pieces : {&out, &in}) {
    for (const Piece& piece : *pieces) bytes += piece.bytes;
  }
  const HostMemory::Block block = HostMemory::all().take(bytes);
  std::byte* begin = block.begin;
  for (auto* pieces : {&out, &in}) {
    for (Piece& piece : *pieces) begin = (piece.host = begin) + piece.bytes;
  }

  const std::uint32_t ticket = ++comm->tickets;
  for (const Piece& piece : out) {
    copy_in_stream(stream, piece.host, piece.device, piece.bytes);
  }
  write_in_stream(stream, comm->come, ticket);
  wait_in_stream(stream, comm->go, ticket);
  for (const Piece& piece : in) {
    copy_in_stream(stream, piece.device, piece.host, piece.bytes);
  }
  write_in_stream(stream, block.in_use, 0);

  const std::lock_guard lock(comm->mutex);
  comm->jobs.push_back([=, out = std::move(out), in = std::move(in), work = std::move(work)] {
    while (value_at(comm->come) < ticket && !comm->aborted) std::this_thread::sleep_for(10us);
    if (!comm->aborted) work(out, in);
    std::atomic_ref(*comm->go).store(ticket, std::memory_order_release);
  });
  comm->changed.notify_all();
}

std::byte* device_memory(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

Bytes bytes_of(const Piece& piece) {
  return Bytes(piece.host, piece.host + piece.bytes);
}

// Messages between ncclGroupStart and ncclGroupEnd are one exchange.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  Pieces out;
  Pieces in;
};
thread_local Group group;

void flush_messages() {
  ncclComm* comm = std::exchange(group.comm, nullptr);
  if (comm == nullptr) return;
  enqueue(comm, group.stream, std::exchange(group.out, {}), std::exchange(group.in, {}),
          [comm](const Pieces& out, const Pieces& in) {
            std::vector<Bytes> outgoing(static_cast<std::size_t>(comm->size));
            std::vector<Bytes> incoming(outgoing.size());
            for (const Piece& piece : out) {
              require(outgoing[static_cast<std::size_t>(piece.peer)].empty(),
                      "a second message to one rank in one group");
              outgoing[static_cast<std::size_t>(piece.peer)] = bytes_of(piece);
            }
            for (const Piece& piece : in) {
              incoming[static_cast<std::size_t>(piece.peer)].resize(piece.bytes);
            }
            if (!exchange(*comm, outgoing, incoming)) return;
            for (const Piece& piece : in) {
              std::ranges::copy(incoming[static_cast<std::size_t>(piece.peer)], piece.host);
            }
          });
}

void take_in_group(ncclComm* comm, cudaStream_t stream) {
  require(group.comm == nullptr || group.comm == comm, "a group of several communicators");
  group.comm = comm;
  group.stream = stream;
}

void reduce_to(ncclComm* comm, const void* send, void* receive, std::size_t count,
               ncclDataType_t type, int op, int root, cudaStream_t stream) {
  const auto scale = comm->scales.find(op);
  const double factor = scale == comm->scales.end() ? 1 : scale->second;
  const std::size_t bytes = count * width(type);
  const bool receives = root < 0 || root == comm->rank;
  Pieces result;
  if (receives) result.push_back({static_cast<std::byte*>(receive), bytes});
  enqueue(comm, stream, {{device_memory(send), bytes}}, std::move(result),
          [=](const Pieces& own, const Pieces& in) {
            std::vector<Bytes> outgoing(static_cast<std::size_t>(comm->size));
            std::vector<Bytes> incoming(outgoing.size());
            for (int peer = 0; peer < comm->size; ++peer) {
              const auto p = static_cast<std::size_t>(peer);
              if (root < 0 || root == peer) outgoing[p] = bytes_of(own[0]);
              if (receives) incoming[p].resize(bytes);
            }
            if (!exchange(*comm, outgoing, incoming) || !receives) return;
            reduce(incoming, count, type, op, factor);
            std::ranges::copy(incoming[0], in[0].host);
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
  if (ranks > kMaxRanks) return ncclInvalidArgument;
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = ranks;
  made->name = id.internal;
  const int file = ::shm_open(made->name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Segment)) != 0) return ncclSystemError;
  made->segment = static_cast<Segment*>(
      ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ::close(file);
  if (made->segment == MAP_FAILED) return ncclSystemError;
  made->come = reinterpret_cast<std::uint32_t*>(pinned(2 * sizeof(std::uint32_t)));
  made->go = made->come + 1;
  *made->come = *made->go = 0;
  HostMemory::all();
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
  take_in_group(comm, stream);
  group.out.push_back({device_memory(send), count * width(type), peer});
  if (group.depth == 0) flush_messages();
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  take_in_group(comm, stream);
  group.in.push_back({static_cast<std::byte*>(receive), count * width(type), peer});
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
