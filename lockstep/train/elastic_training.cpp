// SPDX-License-Identifier: BSD-3-Clause
// Tells losses of ranks from other errors, and waits for the generation that follows them.
#include "lockstep/train/elastic_training.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {
namespace {

// All ranks leave the loop together; no rank was lost.
class LeftTogether {};

std::atomic<bool> has_begun = false;

// By when the agents have noticed the loss of a host, after which the network fails.
constexpr std::chrono::milliseconds kHostLossNotice{60'000};

// With another group, the ranks would wait for members that the launcher does not count, or without
// some that it does.
void require_group_of_job(ElasticJob& job, const ProcessGroup& group) {
  std::size_t expected = 1;
  if (!job.in_lobby()) {
    const auto newest =
        job.wait_for_generation(group.generation() - 1, Deadline::after(group.timeout()));
    // The group has lost a rank already, and will say so.
    if (!newest || newest->number > group.generation()) return;
    expected = newest->members.size();
  }
  if (static_cast<std::size_t>(group.size()) == expected) return;
  throw UsageError(
      trainer_on(group),
      fmt::format("this job is elastic and has {} rank{}, and the trainer's group is another one",
                  expected, expected == 1 ? " here" : "s"),
      "give the trainer the group of init_process_group()");
}

}  // namespace

std::unique_ptr<ElasticTraining> ElasticTraining::of_this_process(
    std::shared_ptr<ProcessGroup> group) {
  auto job = ElasticJob::of_this_process();
  if (!job) return nullptr;
  require_first(*group);
  require_group_of_job(*job, *group);
  return std::unique_ptr<ElasticTraining>(new ElasticTraining(std::move(job), std::move(group)));
}

void ElasticTraining::require_first(const ProcessGroup& group) {
  if (!has_begun) return;
  throw UsageError(trainer_on(group),
                   "a process of an elastic job trains once, with one Trainer, since a replacement "
                   "does not know which fit() the others are in",
                   "train all epochs in one call");
}

ElasticTraining::ElasticTraining(std::shared_ptr<ElasticJob> job,
                                 std::shared_ptr<ProcessGroup> group)
    : job_(std::move(job)),
      group_(std::move(group)),
      generation_(job_->in_lobby() ? -1 : group_->generation()),
      has_state_(!job_->in_lobby()),
      patience_(group_->timeout()) {}

// A group that is formed while an exception is handled would take its end for a failure, so the
// handlers only note what happened.
bool ElasticTraining::run(const Adopt& adopt, const std::function<void()>& train) {
  has_begun = true;
  bool changes = !has_state_;
  while (true) {
    try {
      if (changes) {
        if (!form_next_group()) return false;
        adopt(group_);
        has_state_ = true;
        changes = false;
        loss_ = nullptr;
      }
      train();
      return true;
    } catch (const LeftTogether&) {
      // They need no reason.
    } catch (const PeerLost& error) {
      give_up_group(error);
    } catch (const TimeoutError& error) {
      give_up_group(error);
    } catch (const BackendError& error) {
      // What an engine says of a connection whose other end has died, for example.
      if (!asks_to_leave() && !job_->on_several_hosts()) throw;
      give_up_group(error);
      patience_ = std::min(patience_, kHostLossNotice);
    }
    changes = true;
  }
}

// The others may still wait in the group.
void ElasticTraining::give_up_group(const std::exception& loss) {
  loss_ = std::current_exception();
  group_->abort(
      fmt::format("the ranks meet again without those that are lost: {}", short_message(loss)));
}

bool ElasticTraining::form_next_group() {
  const Deadline deadline = Deadline::after(std::exchange(patience_, group_->timeout()));
  job_->join();
  std::optional<Generation> next;
  try {
    next = job_->wait_for_generation(generation_, deadline);
  } catch (const TimeoutError&) {
    if (loss_) std::rethrow_exception(loss_);  // says more
    throw;
  }
  if (!next) return false;
  generation_ = next->number;
  group_ = init_process_group(*job_, *next,
                              {.backend = group_->requested_backend(),
                               .timeout = group_->timeout(),
                               .device = group_->device()});
  return true;
}

void ElasticTraining::wait_for_end() {
  flush_streams();
  job_->leave(Deadline::after(group_->timeout()));
}

void ElasticTraining::leave() {
  throw LeftTogether();
}

bool ElasticTraining::any_asks_to_leave() {
  const CallScope scope(CallOrigin::trainer);
  const at::Tensor asks = at::full({1}, asks_to_leave() ? 1 : 0, at::kInt);
  job_->note_waiting();
  group_->all_reduce(asks, ReduceOp::max).wait();
  job_->note_going_on();
  return asks.item<int>() > 0;
}

}  // namespace lockstep
