// SPDX-License-Identifier: BSD-3-Clause
// Starts, polls and waits for the calls of ranks that reach each other's memory.
#include "lockstep/comm/local/engine.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/comm/core/group_state.h"
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
    tell_peers(AbortCause::mismatched, short_message(error));
    fail(std::current_exception());
    return true;
  }
}

at::Tensor Engine::make_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                               const Deadline& deadline) {
  return make_together(sizes, options, deadline,
                       [&] { return peers_->new_tensor(sizes, options); });
}

at::Tensor Engine::make_common_tensor(at::IntArrayRef sizes, const at::TensorOptions& options,
                                      const Deadline& deadline) {
  if (peers_->pids().empty()) return {};
  return make_together(sizes, options, deadline,
                       [&] { return peers_->new_common_tensor(sizes, options); });
}

bool Engine::has_ended(int rank) const {
  return !peers_->pids().empty() && peers_->state(rank) != Peers::State::here;
}

template <class Make>
at::Tensor Engine::make_together(at::IntArrayRef sizes, const at::TensorOptions& options,
                                 const Deadline& deadline, const Make& make) {
  // Descriptors come in the order of the calls, so tensors are made one at a time.
  const std::lock_guard one_at_a_time(making_);
  // A rank without memory says so before any rank waits for its part.
  std::unique_ptr<NewTensor> tensor;
  std::optional<BackendError> refusal;
  try {
    tensor = make();
  } catch (const BackendError& error) {
    refusal = error;
  }
  const auto vote =
      std::make_shared<VoteTransfer>(Call{.collective = Collective::empty,
                                          .type = c10::typeMetaToScalarType(options.dtype()),
                                          .elements = c10::multiply_integers(sizes)},
                                     !refusal);
  start(vote);
  wait(*vote, deadline, Waiting::thread);
  const Call& call = vote->call();
  state_.check_votes(call, vote->votes(), refusal);
  // From here on, ranks can no longer agree whether all of them have the tensor.
  try {
    return tensor->share(call.number, deadline);
  } catch (const PeerLost& error) {
    end_group(error.how() == PeerLost::How::left ? AbortCause::left : AbortCause::lost,
              PeerLost(within(state_.context(call), error), error.how()), error.rank());
  } catch (const TimeoutError& error) {
    end_group(AbortCause::timed_out, TimeoutError(within(state_.context(call), error)),
              error.rank());
  } catch (const std::exception& error) {
    end_group(AbortCause::requested, BackendError(within(state_.context(call), error)));
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
    tell_peers(cause, short_message(error), lost_rank);
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

const Call& Engine::oldest() const {
  if (!calls_.empty()) return calls_.oldest();
  return (*std::ranges::find_if(mailboxes_, [](const auto& box) { return !box->empty(); }))
      ->oldest();
}

std::vector<int> Engine::awaited() const {
  std::vector<int> ranks = calls_.awaited();
  for (const auto& box : mailboxes_) {
    if (!box->empty()) ranks.push_back(box->peer());
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Engine::look_around() {
  if (state_.failed()) return;
  advance();
  if (state_.failed() || idle()) return;
  last_look_ = Clock::now();
  const Call call = oldest();
  look_for_aborts(call);
  if (!state_.failed()) look_for_losses(call);
}

std::string Engine::last_wait_of(int rank) const {
  const auto last = peers_->blocks()[rank]->last_wait.get();
  if (!last) return "";
  const bool numbered_alike = !is_message(last->collective) && !is_message(oldest().collective);
  const bool past = numbered_alike && last->number < oldest().number;
  return past ? "" : describe(*last);
}

void Engine::give_up(const Deadline& deadline) {
  Absent absent;
  for (const int rank : awaited()) absent[last_wait_of(rank)].push_back(rank);
  if (absent.empty()) return;  // the last rank has just arrived
  const TimeoutError error = state_.timed_out(oldest(), deadline, absent);
  tell_peers(AbortCause::timed_out, short_message(error), error.rank());
  fail(std::make_exception_ptr(error));
}

void Engine::look_for_aborts(const Call& call) {
  for (int rank = 0; rank < peers_->size(); ++rank) {
    const ControlBlock& block = *peers_->blocks()[rank];
    const auto cause = block.abort_cause.load(std::memory_order_acquire);
    if (cause == AbortCause::none) continue;
    const AbortNotice notice{.rank = rank,
                             .cause = cause,
                             .lost_rank = block.lost_rank,
                             .culprit = block.culprit,
                             .reason = block.abort_reason};
    return fail(state_.ended_by_peer(call, notice), notice.culprit);
  }
}

void Engine::look_for_losses(const Call& call) {
  const auto gone = [&](int rank) { return peers_->state(rank) != Peers::State::here; };
  const std::vector<int> ranks = awaited();
  const auto found = std::find_if(ranks.begin(), ranks.end(), gone);
  if (found == ranks.end()) return;
  // The peer may have done its part just before it left.
  if (advance() || state_.failed()) return;
  // Survivors leave soon after a death, so a rank that left may not be the cause. Nor may a rank
  // that died of an error that it saw; but such a rank has told its peers.
  look_for_aborts(call);
  if (state_.failed()) return;
  int cause = *found;
  for (int rank = peers_->size() - 1; rank >= 0; --rank) {
    if (rank == peers_->rank()) continue;
    const auto state = peers_->state(rank);
    if (state == Peers::State::lost || state == Peers::State::failed) cause = rank;
  }
  const auto state = peers_->state(cause);
  const ControlBlock& block = *peers_->blocks()[cause];
  const bool left = state == Peers::State::left;
  const bool failed = state == Peers::State::failed;
  const PeerLost lost = state_.peer_gone(call, cause,
                                         left     ? PeerEnd::left
                                         : failed ? PeerEnd::failed
                                                  : PeerEnd::died,
                                         failed ? block.abort_reason : "");
  const int culprit = failed ? block.culprit : -1;
  tell_peers(left ? AbortCause::left : AbortCause::lost, short_message(lost), cause, culprit);
  fail(std::make_exception_ptr(lost), culprit);
}

void Engine::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;
  tell_peers(AbortCause::requested, reason);
  const Call call = idle() ? Call{.number = calls_.last_number() + 1} : oldest();
  fail(std::make_exception_ptr(state_.ended_here(call, reason)));
}

void Engine::leave_failing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (state_.failed()) return;  // the peers know already
  leave_word(reason, -1, state_.culprit());
  peers_->leave_failing();
  ring(peers_->blocks(), peers_->rank());
}

void Engine::fail(std::exception_ptr error, int culprit) {
  state_.fail(std::move(error));
  calls_.clear();
  for (const auto& box : mailboxes_) box->clear();
  state_.note_loss(culprit);
}

void Engine::leave_word(const std::string& reason, int lost_rank, int culprit) {
  const auto length = std::min(reason.size(), sizeof peers_->own().abort_reason - 1);
  std::memcpy(peers_->own().abort_reason, reason.data(), length);
  peers_->own().abort_reason[length] = '\0';
  peers_->own().lost_rank = lost_rank;
  peers_->own().culprit = culprit;
}

void Engine::tell_peers(AbortCause cause, const std::string& reason, int lost_rank, int culprit) {
  leave_word(reason, lost_rank, culprit >= 0 ? culprit : state_.culprit(lost_rank));
  peers_->own().abort_cause.store(cause, std::memory_order_release);
  ring(peers_->blocks(), peers_->rank());
}

}  // namespace lockstep::local
