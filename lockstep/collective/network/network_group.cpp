// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/network/network_group.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <poll.h>

#include "lockstep/collective/device_copies.h"
#include "lockstep/collective/exchange_sizes.h"
#include "lockstep/collective/network/network_engine.h"
#include "lockstep/collective/network/plans.h"
#include "lockstep/collective/ordinary_tensor.h"
#include "lockstep/collective/self/self_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/service_thread.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep::network {
namespace {

class NetworkOperation final : public Operation {
 public:
  NetworkOperation(std::shared_ptr<NetworkEngine> engine, std::chrono::milliseconds timeout,
                   at::Device device, const std::optional<Call>& part_of)
      : engine_(std::move(engine)),
        timeout_(timeout),
        device_(device),
        part_of_(part_of),
        copies_(device) {}

  void start(Plan plan) {
    if (part_of_) plan->part_of(*part_of_);
    engine_->start(plan);
    plans_.push_back(std::move(plan));
  }
  // The next one of a list of so many tensors.
  void start(Plan plan, std::size_t tensors) {
    plan->of_list(plans_.size(), tensors);
    start(std::move(plan));
  }
  void start(Plan message, Lane lane) {
    engine_->start(message, lane);
    plans_.push_back(std::move(message));
  }

  at::Tensor input(const at::Tensor& original) const { return usable_on(device_, original); }
  std::vector<at::Tensor> inputs(std::vector<at::Tensor> originals) const {
    for (auto& tensor : originals) tensor = input(tensor);
    return originals;
  }
  const at::Tensor& output(const at::Tensor& original) { return copies_.output(original); }
  std::vector<at::Tensor> outputs(std::vector<at::Tensor> originals) {
    for (auto& tensor : originals) tensor = output(tensor);
    return originals;
  }

  bool poll() override {
    for (const auto& plan : plans_) {
      if (!engine_->poll(*plan)) return false;
    }
    copies_.copy_back();
    return true;
  }

  void wait(const Deadline& deadline) override {
    // Results in host memory have to be there.
    const auto who = copies_.go_elsewhere() ? NetworkEngine::Waiting::thread
                                            : NetworkEngine::Waiting::thread_or_stream;
    for (const auto& plan : plans_) engine_->wait(*plan, deadline, who);
    copies_.copy_back();
  }

  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::shared_ptr<NetworkEngine> engine_;
  std::chrono::milliseconds timeout_;
  at::Device device_;
  std::optional<Call> part_of_;
  c10::SmallVector<Plan, 1> plans_;
  DeviceCopies copies_;
};

// Looks after calls on a device, for which nobody waits: a stream that waits for a peer that died
// would do so for ever.
class Watch {
 public:
  Watch(std::shared_ptr<NetworkEngine> engine, std::chrono::milliseconds timeout)
      : thread_([engine = std::move(engine), timeout](int stop) {
          pollfd entry{stop, POLLIN, 0};
          while (::poll(&entry, 1, kEveryMs) == 0) engine->watch(timeout);
        }) {}

 private:
  static constexpr int kEveryMs = 50;

  ServiceThread thread_;
};

class NetworkGroup final : public ProcessGroup {
 public:
  NetworkGroup(std::string backend, Membership membership, GroupOptions options,
               std::shared_ptr<NetworkEngine> engine, MakeCarrier make_carrier, const Plans& plans)
      : ProcessGroup(std::move(membership), options),
        backend_(std::move(backend)),
        engine_(std::move(engine)),
        make_carrier_(std::move(make_carrier)),
        plans_(plans) {
    if (!plans_.device.is_cpu()) watch_.emplace(engine_, timeout());
  }
  // A stream may still wait for something.
  ~NetworkGroup() override {
    leave_if_failing();
    if (watch_) engine_->finish(Deadline::after(timeout()));
  }

  std::string_view backend() const override { return backend_; }

  // Ordinary memory is as good as any. It is a collective call all the same, so that programs do
  // not come to depend on one backend.
  at::Tensor make_empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    const Call call{.collective = Collective::empty,
                    .type = c10::typeMetaToScalarType(options.dtype()),
                    .elements = c10::multiply_integers(sizes)};
    at::Tensor tensor;
    std::string refusal;
    try {
      tensor = ordinary_tensor(sizes, options, membership().local_world_size);
    } catch (const BackendError& error) {
      refusal = error.what();
    }
    const at::Tensor votes = at::empty({size()}, at::kByte);
    const Plan vote = plan_vote(call, refusal.empty(), votes, place());
    engine_->start(vote);
    engine_->wait(*vote, Deadline::after(timeout()), NetworkEngine::Waiting::thread);
    const std::string where = engine_->where(vote->call());
    if (!refusal.empty()) throw BackendError(where + refusal);
    for (int rank = 0; rank < size(); ++rank) {
      if (votes.data_ptr<std::uint8_t>()[rank] != 0) continue;
      throw BackendError(
          where +
          fmt::format("rank {} found no memory for it; its own error has the figures", rank));
    }
    return tensor;
  }

  void abort(const std::string& reason) override { engine_->abort(reason); }
  bool compares_calls() const { return engine_->compares(); }
  void end_for_mismatch(const std::string& reason) { engine_->end_for_mismatch(reason); }

  Work start_part_of(const Call& whole, const std::function<Work()>& start) {
    part_of_ = whole;
    try {
      Work work = start();
      part_of_.reset();
      return work;
    } catch (...) {
      part_of_.reset();
      throw;
    }
  }

 private:
  void leave_failing(const std::string& reason) override { engine_->leave_failing(reason); }

  std::shared_ptr<NetworkOperation> make_operation() const {
    return std::make_shared<NetworkOperation>(engine_, timeout(), plans_.device, part_of_);
  }
  Place place() const { return engine_->place(); }

  Work start_meeting(const Call& call) override {
    auto operation = make_operation();
    operation->start(plan_vote(call, true, at::empty({size()}, at::kByte), place()));
    return Work(std::move(operation));
  }

  Work start_all_reduce(at::TensorList tensors, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(plans_.all_reduce(operation->output(tensor), options, place()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_reduce(at::TensorList tensors, int root, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(
          plans_.reduce(rank() == root ? operation->output(tensor) : operation->input(tensor), root,
                        options, place()),
          tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_broadcast(at::TensorList tensors, int root) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(plans_.broadcast(operation->output(tensor), root, place()), tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    auto operation = make_operation();
    operation->start(plans_.all_gather(operation->outputs(std::move(outputs)),
                                       operation->input(input), place()));
    return Work(std::move(operation));
  }

  Work start_gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) override {
    auto operation = make_operation();
    operation->start(plans_.gather(operation->outputs(std::move(outputs)), operation->input(input),
                                   root, place()));
    return Work(std::move(operation));
  }

  Work start_scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) override {
    auto operation = make_operation();
    operation->start(plans_.scatter(operation->output(output), operation->inputs(std::move(inputs)),
                                    root, place()));
    return Work(std::move(operation));
  }

  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    auto operation = make_operation();
    operation->start(plans_.reduce_scatter(operation->output(output),
                                           operation->inputs(std::move(inputs)), options, place()));
    return Work(std::move(operation));
  }

  Work start_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    auto operation = make_operation();
    std::vector<std::int64_t> sizes = exchange_sizes(outputs, inputs);
    const Plan plan = plans_.all_to_all(operation->outputs(std::move(outputs)),
                                        operation->inputs(std::move(inputs)));
    if (engine_->compares_first()) plan->begin_with(exchange_comparison(sizes, place()));
    plan->exchanges(std::move(sizes));
    operation->start(plan);
    return Work(std::move(operation));
  }

  Work start_send(at::Tensor tensor, int to, Lane lane) override {
    auto operation = make_operation();
    operation->start(plan_send(operation->input(tensor), to, lane), lane);
    return Work(std::move(operation));
  }

  Work start_recv(at::Tensor tensor, int from, Lane lane) override {
    auto operation = make_operation();
    operation->start(plan_receive(operation->output(tensor), from, lane), lane);
    return Work(std::move(operation));
  }

  std::shared_ptr<ProcessGroup> make_subgroup(const std::string& name,
                                              Membership membership) override {
    const GroupOptions options{.timeout = timeout(), .device = device()};
    if (membership.world_size == 1) return make_self_group(std::move(membership), options);
    // Its ranks meet where the group's did, under a name of their own; its rank 0 is another one.
    membership.store = std::make_shared<PrefixStore>(name + "/", std::move(membership.store));
    membership.address = engine_->own_host();
    return make_network_group(backend_, std::move(membership), options, make_carrier_, plans_);
  }

  const std::string backend_;
  std::shared_ptr<NetworkEngine> engine_;
  MakeCarrier make_carrier_;
  Plans plans_;
  std::optional<Watch> watch_;
  std::optional<Call> part_of_;  // of what is started now
};

// Whether PyTorch's setting asks for a comparison before each call, which counts where the carrier
// does not compare.
bool comparison_is_wanted() {
  return environment("TORCH_DISTRIBUTED_DEBUG").value_or("") == "DETAIL";
}

}  // namespace

Work start_part_of(const Call& whole, ProcessGroup& group, const std::function<Work()>& start) {
  auto* const network_group = dynamic_cast<NetworkGroup*>(&group);
  return network_group != nullptr ? network_group->start_part_of(whole, start) : start();
}

bool compares_calls(const ProcessGroup& group) {
  const auto* const network_group = dynamic_cast<const NetworkGroup*>(&group);
  return network_group != nullptr && network_group->compares_calls();
}

void end_for_mismatch(ProcessGroup& group, const std::string& reason) {
  auto* const network_group = dynamic_cast<NetworkGroup*>(&group);
  if (network_group != nullptr) network_group->end_for_mismatch(reason);
}

std::shared_ptr<ProcessGroup> make_network_group(std::string backend, Membership membership,
                                                 GroupOptions options, MakeCarrier make_carrier,
                                                 const Plans& plans) {
  const Deadline deadline = Deadline::after(options.timeout);
  auto lifeline = std::make_unique<Lifeline>(membership, backend, deadline);
  Membership carriers = membership;
  carriers.store = std::make_shared<PrefixStore>(lifeline->place() + "/", membership.store);
  Joining joining(*lifeline, backend, membership);
  std::unique_ptr<Carrier> carrier;
  try {
    carrier = make_carrier(carriers, joining, deadline);
  } catch (const std::exception& error) {
    joining.give_up(error);
    throw;
  }
  // The hub listens on one address, to which all ranks come.
  const Place place{.rank = membership.rank,
                    .size = membership.world_size,
                    .chunk_bytes = lifeline->within_machine()
                                       ? kChunkBytesOnOneMachine
                                       : carrier->chunk_bytes_between_machines()};
  const bool compare_first = !carrier->compares_calls() && comparison_is_wanted();
  auto engine = NetworkEngine::make(backend, place, std::move(carrier), std::move(lifeline),
                                    membership, compare_first);
  return std::make_shared<NetworkGroup>(std::move(backend), std::move(membership), options,
                                        std::move(engine), std::move(make_carrier), plans);
}

}  // namespace lockstep::network
