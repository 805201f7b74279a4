// SPDX-License-Identifier: BSD-3-Clause
// Joins ranks over Gloo: sends and receives messages over c10d's ProcessGroupGloo, and waits for
// them in threads.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/remote/comparing_transport.h"
#include "lockstep/comm/remote/connections.h"
#include "lockstep/comm/remote/gloo/gloo_sockets.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/network_interfaces.h"
#include "lockstep/core/system_error.h"

namespace lockstep::gloo {
namespace {

using remote::Joining;
using remote::Messenger;
using remote::Transmission;
using remote::Transport;

// Connections to each peer, one for each direction of an exchange. Gloo tells a sender over the
// block's connection that it may begin; on a shared connection, that would wait behind a block in
// the other direction.
constexpr std::size_t kConnections = 2;
// Gloo adds its timeout to the clock, where a longer one would overflow.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);
// Lower tags belong to single messages.
constexpr int kFirstTag = 64;
// Gloo's tags are non-negative ints.
constexpr int kTags = 1 << 29;

// Gloo takes the connections in turn, by tag; so each direction has its own.
int exchange_tag(int tag, int from, int to) {
  return kFirstTag + 2 * tag + (from < to ? 0 : 1);
}

// Counts what has ended on Gloo's threads, and wakes the threads that wait for it.
class Bell {
 public:
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      count_.fetch_add(1, std::memory_order_acq_rel);
    }
    rung_.notify_all();
  }
  void wait(std::uint64_t count, std::chrono::microseconds at_most) {
    std::unique_lock lock(mutex_);
    rung_.wait_for(lock, at_most, [&] { return count_ > count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  std::atomic<std::uint64_t> count_ = 0;
};

// A reused pool of threads for blocking functions, capped if wanted.
class WaitingThreads {
 public:
  explicit WaitingThreads(std::size_t most = std::numeric_limits<std::size_t>::max())
      : most_(most) {}
  // Joins all threads; functions must end by themselves.
  ~WaitingThreads();

  // Runs the function on a free thread, at once or when one is free.
  void run(std::function<void()> function);

 private:
  void work();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable there_is_more_;
  std::deque<std::function<void()>> functions_;
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

WaitingThreads::~WaitingThreads() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  there_is_more_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WaitingThreads::run(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  functions_.push_back(std::move(function));
  if (functions_.size() > idle_ && threads_.size() < most_) {
    threads_.emplace_back([this] { work(); });
  }
  there_is_more_.notify_one();
}

void WaitingThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    there_is_more_.wait(lock, [this] { return ending_ || !functions_.empty(); });
    --idle_;
    if (functions_.empty()) return;
    auto function = std::move(functions_.front());
    functions_.pop_front();
    lock.unlock();
    function();
    function = nullptr;  // destroys its captures while the lock is not held
    lock.lock();
  }
}

// A collective, which Gloo runs on a thread of its own. Its future completes before its Work does,
// so a thread that the future woke must not ask the Work.
class GlooCollective final : public Transmission {
 public:
  GlooCollective(const c10::intrusive_ptr<c10d::Work>& work, std::vector<at::Tensor> tensors,
                 const std::shared_ptr<Bell>& bell)
      : work_(work), future_(work->getFuture()), tensors_(std::move(tensors)) {
    future_->addCallback([bell](c10::ivalue::Future&) { bell->ring(); });
  }

  bool done() override {
    if (!future_->completed()) return false;
    if (future_->hasError()) throw BackendError(future_->tryRetrieveErrorMessage());
    return true;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<at::Tensor> tensors_;
};

// Messages between this rank and others. Gloo offers only to block a thread until they end.
class GlooMessages final : public Transmission {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  GlooMessages(Works works, WaitingThreads& threads, const std::shared_ptr<Bell>& bell) {
    state_->works = std::move(works);
    state_->ended = state_->works.empty();
    if (state_->ended) return;
    threads.run([bell, state = state_] {
      try {
        for (const auto& work : state->works) work->wait();
      } catch (...) {
        state->error = std::current_exception();
      }
      state->ended.store(true, std::memory_order_release);
      bell->ring();
    });
  }

  bool done() override {
    if (!state_->ended.load(std::memory_order_acquire)) return false;
    if (state_->error) std::rethrow_exception(state_->error);
    return true;
  }

 private:
  struct State {
    Works works;
    std::atomic<bool> ended = false;
    std::exception_ptr error;  // written before `ended`
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class GlooMessenger final : public Messenger {
 public:
  GlooMessenger(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, int rank)
      : gloo_(std::move(gloo)), rank_(rank) {}

  // Receives before it sends. Gloo's own alltoall sends first and on one connection, so it would
  // move large blocks in one direction after the other instead of both at once.
  std::unique_ptr<Transmission> exchange(std::span<const Message> outgoing,
                                         std::span<const Message> incoming,
                                         std::shared_ptr<void> memory) override {
    Works works;
    for (const auto& message : incoming) {
      const int tag = exchange_tag(message.tag, message.peer, rank_);
      works.push_back(start_receive(bytes_of(message, memory), message.peer, tag));
    }
    for (const auto& message : outgoing) {
      const int tag = exchange_tag(message.tag, rank_, message.peer);
      works.push_back(start_send(bytes_of(message, memory), message.peer, tag));
    }
    return std::make_unique<GlooMessages>(std::move(works), thread_of_exchanges_, bell_);
  }
  int tags() const override { return kTags; }

  std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) override {
    std::vector<at::Tensor> tensors{bytes};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return std::make_unique<GlooCollective>(gloo_->broadcast(tensors, options), tensors, bell_);
  }

  std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) override {
    return message(start_send(std::move(bytes), to, tag));
  }
  std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) override {
    return message(start_receive(std::move(bytes), from, tag));
  }

  std::int64_t chunk_bytes_between_machines() const override { return 16 << 20; }

  std::uint64_t events() const override { return bell_->count(); }
  void wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) override {
    bell_->wait(events, at_most);
  }

 private:
  using Works = GlooMessages::Works;

  static at::Tensor bytes_of(const Message& message, const std::shared_ptr<void>& memory) {
    return at::from_blob(
        message.data, {message.bytes}, [memory](void*) {}, at::kByte);
  }
  c10::intrusive_ptr<c10d::Work> start_send(at::Tensor bytes, int to, int tag) {
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return gloo_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> start_receive(at::Tensor bytes, int from, int tag) {
    std::vector<at::Tensor> tensors{std::move(bytes)};
    return gloo_->recv(tensors, from, tag);
  }
  std::unique_ptr<Transmission> message(c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<GlooMessages>(Works{std::move(work)}, threads_of_messages_, bell_);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int rank_;
  std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  // Messages end in any order. Exchanges end in the order of their start, which is the same on all
  // ranks.
  WaitingThreads threads_of_messages_;
  WaitingThreads thread_of_exchanges_{1};
};

// Gloo writes to connections whose other end may be gone, and SIGPIPE would end the process. Unlike
// SIG_IGN, a handler is reset to the default in programs that the process executes.
void survive_broken_pipes() {
  struct sigaction current {};
  ::sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler != SIG_DFL) return;
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  nothing.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &nothing, nullptr);
}

// While this lives, new threads get SCHED_BATCH (sched(7)): when they wake, they do not take a core
// at once from a thread that runs.
class BackgroundThreads {
 public:
  BackgroundThreads() {
    if (ordinary_) set(SCHED_BATCH);
  }
  ~BackgroundThreads() {
    if (ordinary_) set(SCHED_OTHER);
  }
  BackgroundThreads(const BackgroundThreads&) = delete;
  BackgroundThreads& operator=(const BackgroundThreads&) = delete;

 private:
  // Where this is forbidden, Gloo is only slower.
  static void set(int policy) {
    const sched_param priority{};
    ::sched_setscheduler(0, policy, &priority);
  }
  const bool ordinary_ = ::sched_getscheduler(0) == SCHED_OTHER;
};

// If Gloo's thread took the core from a thread that holds a connection's lock in order to send, it
// would retry the lock until the end of its time slice, some milliseconds later.
std::shared_ptr<::gloo::transport::Device> make_device() {
  const BackgroundThreads background;
  return c10d::ProcessGroupGloo::createDeviceForHostname(kGlooHost);
}

// Blocks until this rank is connected to all others, from the address that leads to rank 0 or from
// an interface that GLOO_SOCKET_IFNAME allows. A message may take as long as the timeout.
// TimeoutError, and what Joining::check throws.
std::unique_ptr<Transport> join(const Membership& membership, Joining& joining,
                                std::chrono::milliseconds timeout, const Deadline& deadline) try {
  survive_broken_pipes();
  const auto interfaces = environment("GLOO_SOCKET_IFNAME");
  const std::string host =
      interfaces ? gloo_address(*interfaces, joining.own_host()) : joining.own_host();
  auto connections =
      remote::connect_ranks(membership, joining, host, static_cast<int>(kConnections), deadline);
  GlooSockets sockets;
  // The group's own deadline comes first. After this one, Gloo drops what no thread waits for.
  const auto options = c10d::ProcessGroupGloo::Options::create(std::min(timeout, kLongestTimeout) +
                                                               std::chrono::seconds(10));
  options->devices.assign(kConnections, make_device());
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      make_store(sockets.stand_ins()), membership.rank, membership.world_size, options);
  sockets.replace(std::move(connections));
  return std::make_unique<remote::ComparingTransport>(
      std::make_unique<GlooMessenger>(std::move(gloo), membership.rank), membership.rank,
      membership.world_size);
} catch (const UsageError&) {
  throw;
} catch (const PeerLost&) {
  throw;
} catch (const TimeoutError&) {
  throw;
} catch (const std::exception& error) {
  throw BackendError(joining.context(), first_line(error));
}

// The descriptors that joining takes: for this rank itself, and for each other rank (two
// connections and their stand-ins). Checked first, since Gloo's errors do not name what is lacking.
constexpr int kOwnDescriptors = 12;
constexpr int kDescriptorsToEach = 4;

}  // namespace
}  // namespace lockstep::gloo

namespace lockstep {

std::shared_ptr<Backend> make_gloo_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name) {
  const auto timeout = options.timeout;
  return remote::make_remote_backend(
      name, membership, options,
      {.check =
           [](const Membership& member, const ErrorContext& context) {
             check_interfaces(context, "GLOO_SOCKET_IFNAME", gloo_uses);
             require_descriptors(context, gloo::kOwnDescriptors +
                                              gloo::kDescriptorsToEach * (member.world_size - 1));
           },
       .join =
           [timeout](const Membership& member, remote::Joining& joining, const Deadline& deadline) {
             return gloo::join(member, joining, timeout, deadline);
           }});
}

}  // namespace lockstep
