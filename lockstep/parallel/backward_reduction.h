// SPDX-License-Identifier: BSD-3-Clause
// One backward pass, the core of Reducer: gradients become ready, buckets are launched, and at the
// end everything is reduced and .grad are views of the buckets. A backward that reaches parameters
// around the outputs is reduced at its end (bypassing_gradients.cpp).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/announced_step.h"
#include "lockstep/parallel/backward_entry.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/comm_hook.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"
#include "lockstep/parallel/finite_findings.h"
#include "lockstep/parallel/gradient_hooks.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/shared_findings.h"
#include "lockstep/parallel/update_count.h"

namespace lockstep {

// Owned by its Reducer and by the graphs that lead to it, so that a backward may run after the
// Reducer is gone.
class BackwardReduction final : public BackwardListener,
                                public GradientListener,
                                public std::enable_shared_from_this<BackwardReduction> {
 public:
  // The parameters are distinct leaves. Those that require no gradient are left out.
  // `no_sync_depth` counts the NoSync guards that live.
  BackwardReduction(const std::vector<NamedTensor>& parameters, std::shared_ptr<ProcessGroup> group,
                    BucketLimits limits, const ReducerOptions& options,
                    std::shared_ptr<const int> no_sync_depth);

  // Prepares for a forward: parameters whose data was replaced, as torch::load does, get their
  // hooks again. Error if a backward has failed; UsageError if parameters have been updated with
  // gradients that were not reduced.
  void check();
  // A synchronized forward has run. Until the parameters change, every backward is reduced, by
  // whichever way it reaches them.
  void expect_backwards();
  // Learns when a backward enters through the output of a forward that was not synchronized.
  const std::shared_ptr<BackwardListener>& unsynchronized_entry();
  // UsageError, which begins with `who`, if a gradient to step with has parts that were not
  // reduced.
  void require_reduced(const std::string& who) const;
  // Names of the parameters that no rank used between the last two reductions.
  std::vector<std::string> unused_parameters() const;
  // The hook replaces the all_reduce.
  void register_comm_hook(CommHook hook) { hook_ = std::move(hook); }

  // What each bucket holds; empty until the first backward. Parameters are counted as tensor()
  // does.
  const std::vector<PlannedBucket>& plan() const { return plan_; }
  const at::Tensor& tensor(int parameter) const {
    return parameters_[static_cast<std::size_t>(parameter)].tensor;
  }
  // Whether a backward leaves each rank only its share (share_of_rank) of each bucket's means.
  bool divides() const { return !options_.whole_gradients && group_->size() > 1; }
  // There is an optimizer that updates this rank's shares only. Without one, the second backward
  // that divides is refused.
  void expect_shares() { shares_expected_ = true; }
  // From now on, a backward that divides leaves the shares to be reduced by the optimizer, in its
  // only pass, unless their means are needed before.
  void defer_shares() { defers_shares_ = divides(); }
  // Collective if shares are still to be reduced; then each rank gets its own.
  void reduce_shares();
  // Whether shares were still to be reduced. The caller does so, from the buckets of all ranks,
  // into which this rank brings its gradients.
  bool take_over_shares();
  // Whether a backward has made all buckets of the plan.
  bool has_buckets() const { return !plan_.empty() && slots_.size() == plan_.size(); }
  const Bucket& bucket(std::size_t index) const { return slots_[index].bucket; }
  // How many tensor() knows.
  int parameters() const { return static_cast<int>(parameters_.size()); }
  // Views of the gradients' elements that lie in this rank's shares. The ranks' views together are
  // all gradients, each element once. A gradient that was replaced becomes a view of its bucket.
  std::vector<at::Tensor> own_gradients();

  // For join(): whether each step is announced to ranks that have no batches left.
  void announce_steps(bool on) { announces_ = on; }
  bool announces_steps() const { return announces_; }
  // Collective if steps are announced; otherwise nothing happens, and the result's root is 0.
  AnnouncedStep announce(JoinStep mine);
  // The root of the step that was announced last.
  int last_root() const { return root_; }
  // Takes part in a backward of the other ranks that was announced. First zeroes this rank's
  // gradients; afterwards each .grad is the ranks' mean.
  void follow_backward();

  // The state from which the first forward has drawn random numbers, 0 if it drew none; compared
  // between the ranks in the first backward.
  void set_first_draw(std::int64_t state) { first_draw_ = state; }

  void backward_entered() override;
  void gradient_coming(int parameter, const at::Tensor& gradient) override;
  void gradient_accumulated(int parameter, bool defined) override;
  bool is_reducing() override;

 private:
  // Shows whether a parameter has changed. torch::optim::SGD changes data(), which autograd does
  // not count.
  struct Snapshot {
    std::int64_t version = -1;              // autograd's count of changes; -1: no snapshot
    std::array<std::byte, 64> values = {};  // the first ones, in a CPU's memory

    bool operator==(const Snapshot&) const = default;
  };
  struct Parameter {
    Parameter(const NamedTensor& named, int number, GradientListener& listener)
        : name(named.name),
          tensor(named.tensor),
          hooks(tensor, number, listener),
          size{tensor.numel(), tensor.scalar_type(), tensor.device()} {}

    std::string name;
    at::Tensor tensor;
    GradientHooks hooks;
    std::vector<GradientHooks> earlier_hooks{};  // on accumulators that the tensor had before
    GradientSize size;
    int bucket = -1;
    int slot = 0;  // its gradient's index in its bucket
    // How often its gradient has been accumulated in this backward, and how often in a complete
    // one; nested backwards accumulate several times.
    int count = 0;
    int whole_count = 0;
    int last_tick = 0;  // when it was last accumulated, in the first backward
    bool used = false;  // on this rank since the last reduction, even under no_sync()
    bool unused_everywhere = false;
    at::Tensor kept;                    // the gradient's bits, in case no rank used the parameter
    std::int64_t divided_version = -1;  // of a gradient of which this rank has only its share
    Snapshot at_forward = {};           // after the last synchronized forward
    Snapshot at_bypass = {};  // when its gradient last got a part that was not reduced since
  };
  struct Slot {
    explicit Slot(Bucket made) : bucket(std::move(made)), missing(bucket.size()) {}

    Bucket bucket;
    int missing;  // gradients that are not ready yet
    bool launched = false;
    std::optional<Launch> launch;  // only if this process is traced
    Work work;
  };
  class EndOfBackward;
  class UnsynchronizedEntry;

  void at_end_of_backward(void (BackwardReduction::*ended)(),
                          void (BackwardReduction::*failed)() noexcept);
  void refuse_create_graph() const;
  void require_owner_of_shares() const;
  bool accumulates_nothing() const;
  template <class Function>
  void reducing(Function&& function);
  void begin();
  void finish();
  void make_plan();
  void bypassed_outputs(Parameter& parameter);
  void finish_bypass();
  static Snapshot snapshot_of(const at::Tensor& parameter);
  void end_unsynchronized() noexcept { unsynchronized_ = false; }
  void refuse_updates_without_reduction() const;
  [[noreturn]] void refuse_update(const Parameter& parameter) const;
  void warn_of_equal_draws(std::int64_t root_draw);
  void add_bucket();
  void contribute(Parameter& parameter);
  void launch_next();
  Work reduce(Bucket& bucket);
  void trace_arrival(Slot& slot) const;
  void check_contribution(const Parameter& parameter, Bucket& bucket);
  void settle(Slot& slot, const Findings* shared = nullptr);
  at::Tensor bring_in(Slot& slot, int index);
  bool settle_shares();
  std::string compare_updates();
  void reduce_buckets();
  Work reduce_share(Bucket& bucket);
  Findings exchange_findings();
  void refuse_to_add_to_divided(const Parameter& parameter);
  void give_up(const std::string& reason) noexcept;
  void backward_failed() noexcept;
  [[noreturn]] void refuse(const std::string& reason);
  std::string where() const;

  std::vector<Parameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  BucketLimits limits_;
  const ReducerOptions options_;
  bool shares_expected_ = false;
  bool defers_shares_ = false;
  bool shares_are_due_ = false;
  CommHook hook_;                                    // empty unless the user has registered one
  std::optional<FiniteGradients> finite_gradients_;  // empty unless checked
  std::vector<PlannedBucket> plan_;  // empty until the first backward has shown the order
  std::vector<Slot> slots_;
  std::size_t next_ = 0;     // the bucket to launch next
  std::size_t waiting_ = 0;  // the oldest bucket that is launched and not known to be done
  UpdateCount updates_;
  int tick_ = 0;
  bool active_ = false;
  bool announces_ = false;
  int root_ = 0;
  std::int64_t first_draw_ = 0;
  std::shared_ptr<const int> no_sync_depth_;
  std::shared_ptr<BackwardListener> unsynchronized_entry_;
  // This backward has entered through an output of a forward under no_sync().
  bool unsynchronized_ = false;
  // This backward has reached parameters around the outputs, and will be reduced at its end.
  bool reduces_at_end_ = false;
  bool any_bypassed_ = false;  // whether a parameter has a snapshot at_bypass
  std::string failure_;
  // A model on several devices computes gradients on several threads.
  std::mutex mutex_;
};

}  // namespace lockstep
