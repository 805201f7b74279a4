// SPDX-License-Identifier: BSD-3-Clause
// Tells losses of ranks from other errors, and waits for the generation that follows them.
#include "lockstep/train/elastic_training.h"

#include <string>
#include <utility>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// All ranks leave the loop together; no rank was lost.
class LeftTogether {};

}  // namespace

std::unique_ptr<ElasticTraining> ElasticTraining::of_this_process(
    std::shared_ptr<ProcessGroup> group) {
  auto job = ElasticJob::of_this_process();
  if (!job) return nullptr;
  return std::unique_ptr<ElasticTraining>(new ElasticTraining(std::move(job), std::move(group)));
}

ElasticTraining::ElasticTraining(std::shared_ptr<ElasticJob> job,
                                 std::shared_ptr<ProcessGroup> group)
    : job_(std::move(job)),
      group_(std::move(group)),
      generation_(job_->in_lobby() ? -1 : group_->generation()),
      has_state_(!job_->in_lobby()) {}

// A group that is formed while an exception is handled would take its end for a failure, so the
// handlers only note what happened.
void ElasticTraining::run(const Adopt& adopt, const std::function<void()>& train) {
  bool changes = !has_state_;
  while (true) {
    try {
      if (changes) {
        form_next_group();
        adopt(group_);
        has_state_ = true;
        changes = false;
        loss_ = nullptr;
      }
      train();
      return;
    } catch (const LeftTogether&) {
      // They need no reason.
    } catch (const PeerLost& error) {
      give_up_group(error);
    } catch (const TimeoutError& error) {
      give_up_group(error);
    } catch (const BackendError& error) {
      // What an engine says of a connection whose other end has died, for example.
      if (!asks_to_leave()) throw;
      give_up_group(error);
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

void ElasticTraining::form_next_group() {
  const Deadline deadline = Deadline::after(group_->timeout());
  job_->join();
  Generation next;
  try {
    next = job_->wait_for_generation(generation_, deadline);
  } catch (const TimeoutError&) {
    if (loss_) std::rethrow_exception(loss_);  // says more
    throw;
  }
  generation_ = next.number;
  group_ = init_process_group(*job_, next,
                              {.backend = group_->requested_backend(),
                               .timeout = group_->timeout(),
                               .device = group_->device()});
}

void ElasticTraining::leave() {
  throw LeftTogether();
}

void ElasticTraining::leave_if_any_asks() {
  const CallScope scope(CallOrigin::trainer);
  const at::Tensor asks = at::full({1}, asks_to_leave() ? 1 : 0, at::kInt);
  group_->all_reduce(asks, ReduceOp::max).wait();
  if (asks.item<int>() > 0) leave();
}

}  // namespace lockstep
