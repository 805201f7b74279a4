// SPDX-License-Identifier: BSD-3-Clause
// Runs the two reductions of each bucket, after the reductions of the bucket before it.
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/hooks/hook_group.h"
#include "lockstep/hooks/low_rank_bucket.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

constexpr std::string_view kPowerSgd = "power_sgd_hook";

// One iteration of a bucket. Its second reduction starts when start_second() or wait() is called,
// and never in poll(), so that all ranks start their reductions in the same order.
class PowerSgdStep final : public Operation {
 public:
  PowerSgdStep(ProcessGroup& group, std::shared_ptr<LowRankBucket> bucket,
               const at::Generator& random)
      : group_(group.shared_from_this()), bucket_(std::move(bucket)) {
    bucket_->begin(random);
    reduction_ = group_->all_reduce(bucket_->first(), ReduceOp::mean);
  }

  void start_second(const Deadline& deadline) {
    if (state_ != State::first) return;
    reduction_.wait(deadline);
    const at::NoGradGuard no_grad;
    bucket_->make_q();
    reduction_ = group_->all_reduce(bucket_->q(), ReduceOp::mean);
    state_ = State::second;
  }

  bool finished() const override { return state_ == State::done; }
  bool poll() override {
    if (finished()) return true;
    if (!reduction_.poll() || state_ == State::first) return false;
    end();
    return true;
  }
  void wait(const Deadline& deadline) override {
    start_second(deadline);
    if (finished()) return;
    reduction_.wait(deadline);
    end();
  }
  Deadline default_deadline() const override { return Deadline::after(group_->timeout()); }

 private:
  enum class State : std::uint8_t { first, second, done };

  void end() {
    const at::NoGradGuard no_grad;
    bucket_->end();
    state_ = State::done;
  }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<LowRankBucket> bucket_;
  State state_ = State::first;
  Work reduction_;
};

class PowerSgd {
 public:
  explicit PowerSgd(const PowerSGDState& options)
      : options_(options),
        group_(kPowerSgd, options.group),
        random_(at::make_generator<at::CPUGeneratorImpl>(options.random_seed)) {}

  Work reduce(const GradBucket& bucket) {
    ProcessGroup& group = group_.for_bucket(bucket);
    if (bucket.index() == 0 && ++iteration_ == 1) compare_options(group);
    if (iteration_ <= options_.start_powerSGD_iter) {
      return group.all_reduce(bucket.buffer(), ReduceOp::mean);
    }
    const at::NoGradGuard no_grad;
    const std::shared_ptr<LowRankBucket>& matrices = find(bucket);
    const std::shared_ptr<PowerSgdStep> before = last_step_.lock();
    Work work;
    if (matrices->compresses()) {
      const auto step = std::make_shared<PowerSgdStep>(group, matrices, random_);
      last_step_ = step;
      work = Work(step);
    } else {
      work = group.all_reduce(bucket.buffer(), ReduceOp::mean);
    }
    if (before) before->start_second(before->default_deadline());
    return work;
  }

 private:
  // Ranks that compress differently would reduce factors that do not belong together.
  void compare_options(ProcessGroup& group) const {
    check_agreement(
        group, kPowerSgd,
        {fmt::format("matrix_approximation_rank {}", options_.matrix_approximation_rank),
         fmt::format("start_powerSGD_iter {}", options_.start_powerSGD_iter),
         fmt::format("min_compression_rate {}", options_.min_compression_rate),
         fmt::format("use_error_feedback {}", options_.use_error_feedback),
         fmt::format("warm_start {}", options_.warm_start),
         fmt::format("orthogonalization_epsilon {}", options_.orthogonalization_epsilon),
         fmt::format("random_seed {}", options_.random_seed)},
        "hook");
  }

  const std::shared_ptr<LowRankBucket>& find(const GradBucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index());
    if (buckets_.size() <= index) buckets_.resize(index + 1);
    std::shared_ptr<LowRankBucket>& known = buckets_[index];
    if (!known || !known->is_of(bucket)) known = std::make_shared<LowRankBucket>(bucket, options_);
    return known;
  }

  const PowerSGDState options_;
  const HookGroup group_;
  at::Generator random_;
  std::int64_t iteration_ = 0;  // counted from 1
  std::vector<std::shared_ptr<LowRankBucket>> buckets_;
  std::weak_ptr<PowerSgdStep> last_step_;
};

void check_options(const PowerSGDState& options) {
  const ProcessGroup& group = options.group.get();
  const ErrorContext context = group.context(kPowerSgd);
  if (options.matrix_approximation_rank < 1) {
    throw UsageError(
        context, fmt::format("matrix_approximation_rank is {}", options.matrix_approximation_rank),
        "set it to 1 or more");
  }
  if (!(options.min_compression_rate >= 0) || !(options.orthogonalization_epsilon >= 0)) {
    throw UsageError(context,
                     fmt::format("min_compression_rate is {} and orthogonalization_epsilon is {}",
                                 options.min_compression_rate, options.orthogonalization_epsilon),
                     "neither may be negative");
  }
  if (options.start_powerSGD_iter <= 1 && (options.use_error_feedback || options.warm_start)) {
    throw UsageError(
        context,
        fmt::format("start_powerSGD_iter is {}, but error feedback and warm start need plain "
                    "iterations first",
                    options.start_powerSGD_iter),
        "set it to 2 or more, or set use_error_feedback and warm_start to false");
  }
}

}  // namespace

CommHook power_sgd_hook(PowerSGDState state) {
  check_options(state);
  return [hook = std::make_shared<PowerSgd>(state)](GradBucket& bucket) {
    return hook->reduce(bucket);
  };
}

}  // namespace lockstep
