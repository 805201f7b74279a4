// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/remote/remote_group.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <poll.h>

#include "lockstep/comm/core/device_copies.h"
#include "lockstep/comm/core/exchange_sizes.h"
#include "lockstep/comm/core/ordinary_tensor.h"
#include "lockstep/comm/remote/engine.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/service_thread.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep::remote {
namespace {

class RemoteOperation final : public Operation {
 public:
  RemoteOperation(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout,
                  at::Device device, const std::optional<Call>& part_of)
      : engine_(std::move(engine)),
        timeout_(timeout),
        device_(device),
        part_of_(part_of),
        copies_(device) {}

  void start(SchedulePtr schedule) {
    if (part_of_) schedule->part_of(*part_of_);
    engine_->start(schedule);
    schedules_.push_back(std::move(schedule));
  }
  // The next one of a list of so many tensors.
  void start(SchedulePtr schedule, std::size_t tensors) {
    schedule->of_list(schedules_.size(), tensors);
    start(std::move(schedule));
  }
  void start(SchedulePtr message, Tag tag) {
    engine_->start(message, tag);
    schedules_.push_back(std::move(message));
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
    for (const auto& schedule : schedules_) {
      if (!engine_->poll(*schedule)) return false;
    }
    copies_.copy_back();
    return true;
  }

  void wait(const Deadline& deadline) override {
    // Results in host memory have to be there.
    const auto who =
        copies_.go_elsewhere() ? Engine::Waiting::thread : Engine::Waiting::thread_or_stream;
    for (const auto& schedule : schedules_) engine_->wait(*schedule, deadline, who);
    copies_.copy_back();
  }

  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::chrono::milliseconds timeout_;
  at::Device device_;
  std::optional<Call> part_of_;
  c10::SmallVector<SchedulePtr, 1> schedules_;
  DeviceCopies copies_;
};

// Looks after calls on a device, for which nobody waits: a stream that waits for a peer that died
// would do so for ever.
class Watch {
 public:
  Watch(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout)
      : thread_([engine = std::move(engine), timeout](int stop) {
          pollfd entry{stop, POLLIN, 0};
          while (::poll(&entry, 1, kEveryMs) == 0) engine->watch(timeout);
        }) {}

 private:
  static constexpr int kEveryMs = 50;

  ServiceThread thread_;
};

class RemoteGroup final : public ProcessGroup {
 public:
  RemoteGroup(std::string backend, Membership membership, GroupOptions options,
              std::shared_ptr<Engine> engine, MakeTransport make_transport,
              const Schedules& schedules)
      : ProcessGroup(std::move(membership), options),
        backend_(std::move(backend)),
        engine_(std::move(engine)),
        make_transport_(std::move(make_transport)),
        schedules_(schedules) {
    if (!schedules_.device.is_cpu()) watch_.emplace(engine_, timeout());
  }
  // A stream may still wait for something.
  ~RemoteGroup() override {
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
    const SchedulePtr vote = schedule_vote(call, refusal.empty(), votes, position());
    engine_->start(vote);
    engine_->wait(*vote, Deadline::after(timeout()), Engine::Waiting::thread);
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

  std::shared_ptr<RemoteOperation> make_operation() const {
    return std::make_shared<RemoteOperation>(engine_, timeout(), schedules_.device, part_of_);
  }
  Position position() const { return engine_->position(); }

  Work start_barrier(const Call& call) override {
    auto operation = make_operation();
    operation->start(schedule_vote(call, true, at::empty({size()}, at::kByte), position()));
    return Work(std::move(operation));
  }

  Work start_all_reduce(at::TensorList tensors, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(schedules_.all_reduce(operation->output(tensor), options, position()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_reduce(at::TensorList tensors, int root, AllReduceOptions options) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(
          schedules_.reduce(rank() == root ? operation->output(tensor) : operation->input(tensor),
                            root, options, position()),
          tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_broadcast(at::TensorList tensors, int root) override {
    auto operation = make_operation();
    for (const auto& tensor : tensors) {
      operation->start(schedules_.broadcast(operation->output(tensor), root, position()),
                       tensors.size());
    }
    return Work(std::move(operation));
  }

  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    auto operation = make_operation();
    operation->start(schedules_.all_gather(operation->outputs(std::move(outputs)),
                                           operation->input(input), position()));
    return Work(std::move(operation));
  }

  Work start_gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) override {
    auto operation = make_operation();
    operation->start(schedules_.gather(operation->outputs(std::move(outputs)),
                                       operation->input(input), root, position()));
    return Work(std::move(operation));
  }

  Work start_scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) override {
    auto operation = make_operation();
    operation->start(schedules_.scatter(operation->output(output),
                                        operation->inputs(std::move(inputs)), root, position()));
    return Work(std::move(operation));
  }

  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    auto operation = make_operation();
    operation->start(schedules_.reduce_scatter(
        operation->output(output), operation->inputs(std::move(inputs)), options, position()));
    return Work(std::move(operation));
  }

  Work start_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    auto operation = make_operation();
    std::vector<std::int64_t> sizes = exchange_sizes(outputs, inputs);
    const SchedulePtr schedule = schedules_.all_to_all(operation->outputs(std::move(outputs)),
                                                       operation->inputs(std::move(inputs)));
    if (engine_->compares_first()) schedule->begin_with(exchange_comparison(sizes, position()));
    schedule->exchanges(std::move(sizes));
    operation->start(schedule);
    return Work(std::move(operation));
  }

  Work start_send(at::Tensor tensor, int to, Tag tag) override {
    auto operation = make_operation();
    operation->start(schedule_send(operation->input(tensor), to, tag), tag);
    return Work(std::move(operation));
  }

  Work start_recv(at::Tensor tensor, int from, Tag tag) override {
    auto operation = make_operation();
    operation->start(schedule_receive(operation->output(tensor), from, tag), tag);
    return Work(std::move(operation));
  }

  std::shared_ptr<ProcessGroup> make_subgroup(const std::string& name,
                                              Membership membership) override {
    const GroupOptions options{.timeout = timeout(), .device = device()};
    if (membership.world_size == 1) return make_self_group(std::move(membership), options);
    // Its ranks meet where the group's did, under a name of their own; its rank 0 is another one.
    membership.store = std::make_shared<PrefixStore>(name + "/", std::move(membership.store));
    membership.address = engine_->own_host();
    return make_remote_group(backend_, std::move(membership), options, make_transport_, schedules_);
  }

  const std::string backend_;
  std::shared_ptr<Engine> engine_;
  MakeTransport make_transport_;
  Schedules schedules_;
  std::optional<Watch> watch_;
  std::optional<Call> part_of_;  // of what is started now
};

// Whether PyTorch's setting asks for a comparison before each call, which counts where the
// transport does not compare.
bool comparison_is_wanted() {
  return environment("TORCH_DISTRIBUTED_DEBUG").value_or("") == "DETAIL";
}

}  // namespace

Work start_part_of(const Call& whole, ProcessGroup& group, const std::function<Work()>& start) {
  auto* const network_group = dynamic_cast<RemoteGroup*>(&group);
  return network_group != nullptr ? network_group->start_part_of(whole, start) : start();
}

bool compares_calls(const ProcessGroup& group) {
  const auto* const network_group = dynamic_cast<const RemoteGroup*>(&group);
  return network_group != nullptr && network_group->compares_calls();
}

void end_for_mismatch(ProcessGroup& group, const std::string& reason) {
  auto* const network_group = dynamic_cast<RemoteGroup*>(&group);
  if (network_group != nullptr) network_group->end_for_mismatch(reason);
}

std::shared_ptr<ProcessGroup> make_remote_group(std::string backend, Membership membership,
                                                GroupOptions options, MakeTransport make_transport,
                                                const Schedules& schedules) {
  const Deadline deadline = Deadline::after(options.timeout);
  auto monitor = std::make_unique<PeerMonitor>(membership, backend, deadline);
  Membership transports = membership;
  transports.store = std::make_shared<PrefixStore>(monitor->store_prefix() + "/", membership.store);
  Joining joining(*monitor, backend, membership);
  std::unique_ptr<Transport> transport;
  try {
    transport = make_transport(transports, joining, deadline);
  } catch (const std::exception& error) {
    joining.give_up(error);
    throw;
  }
  // The monitor's server listens on one address, to which all ranks come.
  const Position position{.rank = membership.rank,
                          .size = membership.world_size,
                          .chunk_bytes = monitor->within_machine()
                                             ? kChunkBytesOnOneMachine
                                             : transport->chunk_bytes_between_machines()};
  const bool compare_first = !transport->compares_calls() && comparison_is_wanted();
  auto engine = Engine::make(backend, position, std::move(transport), std::move(monitor),
                             membership, compare_first);
  return std::make_shared<RemoteGroup>(std::move(backend), std::move(membership), options,
                                       std::move(engine), std::move(make_transport), schedules);
}

}  // namespace lockstep::remote
