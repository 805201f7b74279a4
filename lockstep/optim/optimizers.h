// SPDX-License-Identifier: BSD-3-Clause
// Public. SGD, Adam and AdamW that read and write each element once a step, where libtorch's own
// run about ten small kernels a parameter:
//
//   lockstep::optim::Adam optimizer(net->parameters(), 1e-3);  // one process, or DataParallel
//   lockstep::optim::Adam optimizer(model, 1e-3);              // sharded over the ranks of a
//                                                              // DistributedDataParallel
//
// They are libtorch's optimizers with a different step(). Options and their defaults, parameter
// groups, closures, learning-rate schedulers, torch::save and torch::load work as before.
// docs/optimizers.md lists what differs, and what sharding saves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {
class DividedReduction;
}

namespace lockstep::optim {

class FlatParameters;
class UpdateLog;
namespace detail {
struct Survivor;
}

// What GradScaler (lockstep/amp/grad_scaler.h) asks of an optimizer that unscales gradients while
// it reads them, and not in a pass of its own.
class UnscalingOptimizer {
 public:
  virtual ~UnscalingOptimizer() = default;
  // Whether no gradient has an infinite or NaN element: the same on every rank. If gradients are
  // divided, the ranks exchange one byte each; otherwise nothing, since all have the same.
  virtual bool gradients_are_finite() = 0;
  // step() with gradients multiplied by the factor. What .grad holds afterwards is not specified.
  virtual void step_unscaling(double gradient_factor) = 0;
};

// A part of the state of a parameter.
struct StatePart {
  std::size_t parameter = 0;  // its position over all groups
  // Elements of the parameter, counted in the order in which they lie in its memory.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // The layout of the parameter, without gaps: where each element lies.
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  // By their names in Python, such as "exp_avg". One dimension with end - begin elements. They may
  // share the optimizer's memory.
  std::vector<NamedTensor> tensors;
  std::int64_t steps = 0;  // 0 if the algorithm does not count them
};

// What recover() returns to each survivor.
struct RecoveredOptimizer {
  // How many updates the parameters and the state contain: calls of step() since the optimizer was
  // made, except those without any gradient before the model's first backward. The same on every
  // survivor. It is the number of calls that have returned here, or one more.
  std::int64_t steps = 0;
  // The whole state with the present options, for load_whole() of the optimizer that continues. Its
  // tensors may lie in memory that all survivors map: do not change them.
  std::unique_ptr<torch::optim::Optimizer> state;
};

// What checkpoints and elastic jobs ask of an optimizer whose ranks may keep a part of the state
// each.
class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;
  // Whether each rank keeps only a part of the state: not in a group of one.
  virtual bool is_sharded() const = 0;
  // Whether that part is this rank's shares of a wrapped model's buckets, so that step() needs
  // gradients from a backward of the wrapper.
  virtual bool owns_shares_of_buckets() const = 0;
  // Collective. Gives the rank `to` the whole state, which save() on it writes until the next step.
  // Does nothing if the optimizer is not sharded.
  virtual void consolidate_state(int to = 0) = 0;
  // What this rank keeps; the whole state if the optimizer is not sharded. Over all ranks, the
  // parts contain each element that has a state once. A state that was loaded and is not yet
  // divided belongs to rank 0. Not collective.
  virtual std::vector<StatePart> own_state() = 0;
  // The whole state in an optimizer of libtorch: itself unless it is sharded; otherwise what
  // consolidate_state() has made, valid until the next step, consolidate_state() or load.
  // UsageError on a rank that does not have it.
  virtual const torch::optim::Optimizer& with_whole_state() const = 0;
  // Returns an optimizer of libtorch with the same parameters and options, without state.
  virtual std::unique_ptr<torch::optim::Optimizer> without_state() const = 0;
  // Takes the options and the state of such an optimizer, or this rank's part of the state. Every
  // rank must be given the same: the next step() compares the numbers of steps and the options.
  // UsageError, and nothing has changed, if it has other parameters or is of another type, or if a
  // tensor of state has another shape than its parameter.
  virtual void load_whole(std::unique_ptr<torch::optim::Optimizer> whole) = 0;
  // Collective. Returns the whole state on every rank, with the present options, for load_whole()
  // of an optimizer that takes this one's place. They may share tensors, so this one must not step
  // any more.
  virtual std::unique_ptr<torch::optim::Optimizer> whole_state() = 0;
  // Whether survivors can recover() the state of a rank that has been killed, since all ranks map
  // it. Not collective.
  virtual bool can_recover() const = 0;
  // See FusedOptimizer.
  virtual RecoveredOptimizer recover(GroupArgument survivors) = 0;
};

// What SGD, Adam and AdamW have in common. Base, Options and State are libtorch's.
template <class Base, class Options, class State>
class FusedOptimizer : public Base, public UnscalingOptimizer, public ShardedOptimizer {
 public:
  // A parameter that a group lists twice is taken once. UsageError if a parameter is in two groups,
  // c10::Error for what libtorch refuses.
  explicit FusedOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                          Options defaults = {});
  explicit FusedOptimizer(std::vector<at::Tensor> parameters, Options defaults = {});

  // Sharded over the ranks, like PyTorch's ZeroRedundancyOptimizer (ZeRO, stage 1; Rajbhandari et
  // al. 2020, arXiv:1910.02054): each rank keeps the state of its part of the elements and updates
  // them, and every rank has all new values when step() returns. Collective, and so are step() and
  // consolidate_state(). Parameters and gradients must be the same on every rank, as they are with
  // DistributedDataParallel. Parameters move into memory of the group: their tensors stay the same
  // objects, but must not be moved or converted from then on. Groups cannot be added later.
  // UsageError on every rank if options or parameters differ between ranks, or if two parameters
  // are different tensors in the same memory; a step() before which this rank's options have
  // changed compares them again. Parameters of which the ranks have one copy per host stay where
  // they are: then too, each rank must have the whole gradients, as in microbatches.
  FusedOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults,
                 GroupArgument group);
  FusedOptimizer(std::vector<at::Tensor> parameters, Options defaults, GroupArgument group);
  // The same for parameters of a wrapped model, or all of them, over its group. Each rank updates
  // the elements whose means it gets with `.whole_gradients = false`. The first backward decides
  // which these are; parameters move after it. UsageError if the model does not reduce the
  // gradient of a parameter.
  FusedOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults,
                 DistributedDataParallelBase& model);
  explicit FusedOptimizer(DistributedDataParallelBase& model, Options defaults = {});
  FusedOptimizer(FusedOptimizer&& other) noexcept;
  ~FusedOptimizer() override;

  // Calls the closure, if there is one, and returns its loss. Then updates the parameters that have
  // a gradient, with libtorch's threads if they are large. Must not run at the same time as a
  // forward or backward of the same parameters. Before it changes a parameter, it throws UsageError
  // if one cannot be updated: its gradient is sparse or of another type, it is not of a real
  // floating-point type, or a group that was added later lists it again. On other devices than the
  // CPU it calls libtorch's fused kernels, or where it has none, its tensor operations.
  //
  // Sharded: PeerLost or TimeoutError if another rank does not take part. This rank's parameters
  // must then not be used: some are new, and some may be wrong. No other rank changes them any
  // more. Continue from a checkpoint, or with one copy per host, by recover(). UsageError if there
  // are gradients, but the model has not run a backward.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  bool gradients_are_finite() override;
  void step_unscaling(double gradient_factor) override;

  bool is_sharded() const override { return group_ != nullptr; }
  bool owns_shares_of_buckets() const override { return is_sharded() && reduction_ != nullptr; }
  void consolidate_state(int to = 0) override;

  // A sharded optimizer saves on the rank that has the consolidated state; UsageError on others.
  // The file is the same as without sharding, so any number of ranks can load it. Every rank must
  // load it: the next step() compares what the ranks have loaded.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // With one_copy_per_host, after a rank has been killed, in step() or elsewhere. The survivors
  // complete the update in which it died, if any rank had begun to change parameters, and go on
  // without a checkpoint. Collective over a new group of the survivors, which is made once the lost
  // processes have ended:
  //
  //   catch (const lockstep::PeerLost&) {
  //     auto survivors = lockstep::init_process_group(...);
  //     auto recovered = optimizer->recover(survivors);
  //     steps = recovered.steps;
  //     optimizer.reset();
  //     model.reset();
  //     model = wrap(net, survivors);  // with one_copy_per_host, or without
  //     optimizer = make_optimizer(*model);
  //     optimizer->load_whole(std::move(recovered.state));
  //   }
  //
  // Each survivor then has all parameters, in memory of its own, and the whole state, with the bits
  // of a training that no death has disturbed. Do not change parameters or gradients between the
  // error and recover(). If another rank dies in recover(), call it again with the next group.
  // step() of this optimizer is an error afterwards.
  //
  // UsageError if the ranks have no common copy, if they are on several hosts, whose last steps may
  // differ, if a rank outside the group has not ended within 10 s, or the group's timeout if that
  // is less, if only some survivors have loaded a state since the last step(), or if a group was
  // added after the parameters had been divided.
  RecoveredOptimizer recover(GroupArgument survivors) override;
  bool can_recover() const override;

  std::vector<StatePart> own_state() override;
  const torch::optim::Optimizer& with_whole_state() const override;
  std::unique_ptr<torch::optim::Optimizer> without_state() const override;
  void load_whole(std::unique_ptr<torch::optim::Optimizer> whole) override;
  std::unique_ptr<torch::optim::Optimizer> whole_state() override;

 private:
  void shard(GroupArgument group, std::shared_ptr<ProcessGroup> host = nullptr);
  bool lay_out();
  void take_own_parts();
  bool is_laid_out();
  // UsageError if a group was added since the parameters were divided.
  void require_groups_as_divided() const;
  void update(double gradient_factor);
  void update_own_parts(double gradient_factor);
  void compare_ranks();
  void update_and_exchange(double gradient_factor);
  void update_copies(double gradient_factor, bool averages);
  void update_one_copy(double gradient_factor, bool averages);
  void prepare_logged_update(double gradient_factor, bool averages);
  template <class Part>
  void update_logged_part(torch::optim::Optimizer& optimizer, const Part& part);
  std::vector<int> lost_ranks(const std::vector<detail::Survivor>& survivors,
                              std::chrono::milliseconds timeout) const;
  void complete_update(std::int64_t update, ProcessGroup& group, const std::vector<int>& lost);
  std::unique_ptr<torch::optim::Optimizer> logged_state(std::int64_t update) const;
  std::unique_ptr<torch::optim::Optimizer> loaded_copy() const;
  void give_up(const std::string& reason) noexcept;
  std::unique_ptr<Base> state_gathered_on(int to);
  void gather_state(Base* consolidated, int to);
  std::unique_ptr<Base> plain_copy() const;
  ErrorContext context() const;

  std::shared_ptr<ProcessGroup> group_;          // null unless sharded
  std::shared_ptr<ProcessGroup> host_;           // its ranks with one copy, if there is one
  std::shared_ptr<DividedReduction> reduction_;  // of the model, if there is one
  std::unique_ptr<FlatParameters> flat_;         // once parameters have moved
  std::unique_ptr<Base> loaded_;                 // a state that waits for that
  std::vector<std::string> loaded_lines_;        // of that state, to be compared between ranks
  std::vector<Options> compared_options_;        // of the groups, equal on all ranks
  std::unique_ptr<Base> consolidated_;

  // With one copy of the parameters per host.
  std::unique_ptr<UpdateLog> log_;  // once they are laid out
  std::unique_ptr<Base> unbegun_;   // a state that was loaded, until the next update begins
  int loaded_kinds_ = 0;            // how many tensors that state has of a parameter
  std::int64_t loaded_for_ = 1;     // the update that begins with that state
  double gradient_factor_ = 1;      // of the last update
  bool averages_ = false;           // likewise
  bool is_recovered_ = false;
};

using SGD =
    FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState>;
using Adam =
    FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamW =
    FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

extern template class FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions,
                                     torch::optim::SGDParamState>;
extern template class FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions,
                                     torch::optim::AdamParamState>;
extern template class FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions,
                                     torch::optim::AdamWParamState>;

}  // namespace lockstep::optim
