// SPDX-License-Identifier: BSD-3-Clause
// Starts, polls and waits for the calls of ranks that reach each other's memory.
#include "lockstep/comm/local/engine.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "lockstep/comm/local/doorbell.h"
#include "lockstep/comm/local/transfers.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"

namespace lockstep::local {
namespace {

// How long a sleeping thread goes without checking whether its peers are alive.
constexpr std::chrono::milliseconds kLookAround(20);

}  // namespace

Engine::Engine(std::unique_ptr<Peers> peers, const Membership& membership)
    : peers_(std::move(peers)),
      spin_(every_rank_has_a_core()),
      state_(std::string(peers_->backend()), membership, peers_->pids(),
             [peers = peers_.get()](int rank) { return peers->name(rank); }),
      calls_(*peers_) {}

std::shared_ptr<Engine> Engine::make(std::unique_ptr<Peers> peers, const Membership& membership) {
  std::shared_ptr<Engine> engine(new Engine(std::move(peers), membership));
  share_progress(engine);
  return engine;
}

void Engine::start(const std::shared_ptr<Transfer>& transfer) {
  const std::lock_guard lock(mutex_);
  check_still_there(transfer->call(), calls_.last_number() + 1);
  calls_.push(transfer);
  advance();
}

void Engine::start(const std::shared_ptr<Message>& message, Tag tag) {
  const std::lock_guard lock(mutex_);
  const Call& call = message->call();
  Mailbox& box = mailbox(call.collective, call.root, tag);
  const Call& known_as = message->known_as();
  check_still_there(known_as,
                    is_message(known_as.collective) ? box.last_number() + 1 : known_as.number);
  box.push(message);
  advance();
}

void Engine::check_still_there(Call call, std::uint64_t number) {
  call.number = number;
  if (!state_.failed()) look_for_aborts(call);
  state_.check();
}

Mailbox& Engine::mailbox(Collective direction, int peer, Tag tag) {
  for (const auto& box : mailboxes_) {
    if (box->direction() == direction && box->peer() == peer && box->tag() == tag) return *box;
  }
  return *mailboxes_.emplace_back(std::make_unique<Mailbox>(*peers_, direction, peer, tag));
}

bool Engine::poll(Task& task) {
  if (task.done()) return true;
  const std::lock_guard lock(mutex_);
  if (!task.done()) {
    state_.check();
    // A thread that only polls must see a death as well. But hooks poll often, and the check costs
    // system calls.
    if (!advance() && Clock::now() - last_look_ > kLookAround) look_around();
    if (!task.done()) state_.check();
  }
  return task.done();
}

void Engine::wait(Task& task, const Deadline& deadline, Waiting /*who*/) {
  if (task.done()) return;
  Patience patience(spin_);
  std::optional<Clock::time_point> last_look;
  bool late = false;
  const auto advanced = [&] {
    const std::lock_guard lock(mutex_);
    if (task.done()) return true;
    state_.check();
    return advance();
  };
  while (!task.done()) {
    bool look = false;
    if (advanced()) {
      patience.progress();
    } else if (patience.pause()) {
      continue;
    } else if (!advance_others(*this)) {
      // Peers may need this process's part on another group before they do theirs on this one.
      const OthersBusy others = others_busy(*this);
      Sleep sleep(peers_->own().doorbell, others.doorbells);
      look = !advanced() && !advance_others(*this);
      if (look) sleep.wait(late ? kLookAround : std::min(kLookAround, deadline.remaining()));
    }
    if (task.done()) return;
    // Check even if something moved: other threads' calls may keep moving without end.
    const auto now = Clock::now();
    if (!last_look) last_look = now;
    if (!look && now - *last_look < kLookAround) continue;
    last_look = now;
    const std::lock_guard lock(mutex_);
    look_around();
    if (!task.done() && !state_.failed()) peers_->own().last_wait.set(oldest());
    // Give up only on a second late check: this process itself may have been stopped until now.
    if (late && !task.done() && !state_.failed()) give_up(deadline);
    late = deadline.passed();
  }
}

bool Engine::try_advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !idle() && !state_.failed() && advance();
}

// A thread that holds the lock is advancing this group. The sleeper sees the outcome at its next
// check.
Doorbell* Engine::doorbell_if_busy() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !idle() && !state_.failed() ? &peers_->own().doorbell : nullptr;
}

bool Engine::idle() const {
  return calls_.empty() &&
         std::ranges::all_of(mailboxes_, [](const auto& box) { return box->empty(); });
}

bool Engine::advance() {
  try {
    bool moved = calls_.advance();
    for (const auto& box : mailboxes_) moved |= box->advance();
    return moved;
  } catch (const std::exception& error) {
    // Peers that wait for a message from this rank cannot see by themselves that calls differ.
    tell_peers(AbortCause::mismatched, error.what());
    fail(std::current_exception());
    return true;
  }
}

at::Tensor Engine::make_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                               const Deadline& deadline) {
  // Descriptors come in the order of the calls, so tensors are made one at a time.
  const std::lock_guard one_at_a_time(making_);
  // A rank without memory says so before any rank waits for its part.
  std::unique_ptr<NewTensor> tensor;
  std::string refusal;
  try {
    tensor = peers_->new_tensor(sizes, options);
  } catch (const BackendError& error) {
    refusal = error.what();
  }
  const auto vote =
      std::make_shared<VoteTransfer>(Call{.collective = Collective::empty,
                                          .type = c10::typeMetaToScalarType(options.dtype()),
                                          .elements = c10::multiply_integers(sizes)},
                                     refusal.empty());
  start(vote);
  wait(*vote, deadline, Waiting::thread);
  const Call& call = vote->call();
  state_.check_votes(call, vote->votes(), refusal);
  // From here on, ranks can no longer agree whether all of them have the tensor.
  try {
    return tensor->share(call.number, deadline);
  } catch (const PeerLost& error) {
    end_group(error.how() == PeerLost::How::left ? AbortCause::left : AbortCause::lost,
              PeerLost(error.rank(), state_.where(call) + error.what(), error.how()), error.rank());
  } catch (const TimeoutError& error) {
    end_group(AbortCause::timed_out, TimeoutError(state_.where(call) + error.what(), error.rank()),
              error.rank());
  } catch (const std::exception& error) {
    end_group(AbortCause::requested, BackendError(state_.where(call) + first_line(error)));
  }
}

// Empty for small tensors, which every rank reduces whole.
ElementRange Engine::own_share(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (!tensor.is_cpu() || !tensor.is_contiguous() || bytes <= kInlineBytes) return {};
  const std::lock_guard lock(mutex_);
  if (peers_->location_of(tensor.data_ptr(), bytes).segment == 0) return {};
  return share_of({0, tensor.numel()}, peers_->rank(), peers_->size(), tensor.element_size());
}

std::vector<std::byte*> Engine::symmetric_memory(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || !tensor.is_contiguous()) return {};
  return peers_->symmetric_memory(tensor.data_ptr(), static_cast<std::int64_t>(tensor.nbytes()));
}

template <class SomeError>
void Engine::end_group(AbortCause cause, const SomeError& error, int lost_rank) {
  const std::lock_guard lock(mutex_);
  if (!state_.failed()) {
    tell_peers(cause, error.what(), lost_rank);
    fail(std::make_exception_ptr(error));
  }
  throw error;
}

bool Engine::every_rank_has_a_core() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const auto* block : peers_->blocks()) CPU_OR(&cores, &cores, &block->cores);
  return cut_to_quota(CPU_COUNT(&cores)) >= peers_->size();
}

}  // namespace lockstep::local
