// SPDX-License-Identifier: BSD-3-Clause
// Keeps a training going while its job loses ranks and gets others: forms the group of each new
// generation, and calls the training again.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep {

// A Trainer's side of an elastic job.
class ElasticTraining {
 public:
  // Null unless the launcher of an elastic job started this process. UsageError if `group` is not
  // the group of all members, which init_process_group() returns, or of this newcomer alone.
  static std::unique_ptr<ElasticTraining> of_this_process(std::shared_ptr<ProcessGroup> group);
  // UsageError if this process has begun a training, with this Trainer or another one: a newcomer
  // does not know which training the others are in.
  static void require_first(const ProcessGroup& group);

  // Gives this rank the state of the others, in their new group. Collective. Called again with the
  // group of the next generation if a rank is lost meanwhile.
  using Adopt = std::function<void(std::shared_ptr<ProcessGroup>)>;
  // Calls `train` until it returns. If ranks are lost or join meanwhile, `train` ends with an
  // exception; the next call follows as soon as `adopt` has returned. A newcomer calls `adopt`
  // first. Other exceptions pass through, and also the loss of a rank after which no generation
  // opens within the group's timeout. Returns whether the training is complete: false if the job
  // goes on without this rank, since fewer are wanted.
  bool run(const Adopt& adopt, const std::function<void()>& train);
  // Waits until the launcher ends this process, without which the job goes on; flushes the streams
  // before. Error at the group's timeout.
  [[noreturn]] void wait_for_end();

  // Whether this rank has the weights of the others, or has begun with them.
  bool has_state() const { return has_state_; }
  int generation() const { return generation_; }
  int most_ranks() const { return job_->most_ranks(); }
  // Whether this rank wants all to leave the loop, since a new generation is open. An atomic load.
  bool asks_to_leave() const { return job_->wants_change(generation_); }
  // The launcher knows by these how far this rank has come. `steps`: completed ones.
  void note_steps(std::int64_t steps) noexcept { job_->note_step(steps); }
  void note_waiting() noexcept { job_->note_waiting(); }
  void note_end() noexcept { job_->note_end(); }
  // Ends `train` at a boundary between steps at which all ranks do so.
  [[noreturn]] static void leave();
  // Collective. Whether a rank wants to leave; the same on every rank.
  bool any_asks_to_leave();

 private:
  ElasticTraining(std::shared_ptr<ElasticJob> job, std::shared_ptr<ProcessGroup> group);

  // False if no group has this rank any more.
  bool form_next_group();
  void give_up_group(const std::exception& loss);

  std::shared_ptr<ElasticJob> job_;
  std::shared_ptr<ProcessGroup> group_;
  int generation_;
  bool has_state_;
  // How long to wait for the next generation.
  std::chrono::milliseconds patience_;
  std::exception_ptr loss_;  // the last one; null if the last change was not a loss
};

}  // namespace lockstep
