// SPDX-License-Identifier: BSD-3-Clause
// Joins ranks over a transport, and carries out a process group's calls by schedules.
#include "lockstep/comm/remote/remote_backend.h"

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <poll.h>

#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/core/copying_operation.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/remote/engine.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/rendezvous/prefix_store.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/ordinary_tensor.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::remote {
namespace {

// Watches calls on a device, for which no thread waits. A stream that waits for a dead peer would
// wait forever.
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

// An all-reduce whose elements travel as 16-bit numbers.
class CompressedAllReduce final : public Operation {
 public:
  CompressedAllReduce(at::Device device, std::chrono::milliseconds timeout)
      : timeout_(timeout), rounded_(device) {}

  at::Tensor rounded(const at::Tensor& original, at::ScalarType type) {
    return rounded_.output_as(original, type);
  }
  void wait_for(Work sum) { sum_ = std::move(sum); }

  bool finished() const override { return rounded_.empty(); }
  bool poll() override {
    if (!sum_.poll()) return false;
    rounded_.copy_back();
    return true;
  }
  void wait(const Deadline& deadline) override {
    sum_.wait(deadline);
    rounded_.copy_back();
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::chrono::milliseconds timeout_;
  DeviceCopies rounded_;
  Work sum_;  // destroyed first, since it uses the copy
};

// Whether the call has a wire type, and its tensor's elements are wider than that type.
bool asks_for_compression(const CollectiveArgs& args) {
  if (args.wire_type == at::ScalarType::Undefined) return false;
  const at::ScalarType type = args.outputs[0].scalar_type();
  return type == at::kFloat || type == at::kDouble;
}

// Carries out such a call, of one tensor: scales and rounds the elements, calls `start` to
// all-reduce the rounded tensor, and widens the result. A scale that comes before the sum keeps it
// within the range of the wire type. Ranks compare the whole call.
Work start_compressed(const CollectiveArgs& args, int ranks, std::chrono::milliseconds timeout,
                      const std::function<Work(const CollectiveArgs&)>& start) {
  const at::Tensor& tensor = args.outputs[0];
  Call whole = args.call_of_output(0);
  whole.type = args.wire_type;
  if (args.part_of != nullptr) whole = *args.part_of;
  const double scale = scale_over(ranks, args.call.op, args.call.scale);
  if (scale != 1) {
    const at::NoGradGuard no_grad;
    tensor.detach().mul_(scale);
  }
  auto operation = std::make_shared<CompressedAllReduce>(tensor.device(), timeout);
  const at::Tensor rounded = operation->rounded(tensor, args.wire_type);
  operation->wait_for(start({.call = {.collective = Collective::all_reduce, .op = ReduceOp::sum},
                             .outputs = rounded,
                             .part_of = &whole}));
  return Work(std::move(operation));
}

class RemoteBackend final : public Backend {
 public:
  RemoteBackend(const Membership& membership, const GroupOptions& options,
                std::shared_ptr<Engine> engine, Parts parts)
      : local_ranks_(membership.local_world_size),
        on_one_machine_(membership.on_one_machine()),
        timeout_(options.timeout),
        options_(options),
        engine_(std::move(engine)),
        parts_(std::move(parts)) {
    if (!parts_.device.is_cpu()) watch_.emplace(engine_, timeout_);
  }
  // A stream may still wait for a call.
  ~RemoteBackend() override {
    if (watch_) engine_->finish(Deadline::after(timeout_));
  }

  std::string_view name() const override { return engine_->state().backend(); }

  Work start(const CollectiveArgs& args) override {
    auto operation = std::make_shared<CopyingOperation>(engine_, timeout_, parts_.device);
    if (args.moves_nothing()) {
      begin(*operation, args, schedule_vote(args.call, true, votes(), position()));
    } else if (is_message(args.call.collective)) {
      const at::Tensor tensor = args.call.collective == Collective::send
                                    ? operation->input(args.inputs[0])
                                    : operation->output(args.outputs[0]);
      auto message = schedule_message(args.call, tensor, args.tag);
      engine_->start(message, args.tag);
      operation->add(std::move(message));
    } else if (compresses(args)) {
      return start_compressed(args, position().size, timeout_,
                              [this](const CollectiveArgs& narrow) { return start(narrow); });
    } else {
      start_staged(*operation, args);
    }
    return Work(std::move(operation));
  }

  // Ordinary memory is as good as any. The call is collective anyway, so that programs do not
  // depend on one backend.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    const Call call{.collective = Collective::empty,
                    .type = c10::typeMetaToScalarType(options.dtype()),
                    .elements = c10::multiply_integers(sizes)};
    at::Tensor tensor;
    std::optional<BackendError> refusal;
    try {
      tensor = ordinary_tensor(sizes, options, local_ranks_);
    } catch (const BackendError& error) {
      refusal = error;
    }
    const at::Tensor granted = votes();
    const SchedulePtr vote = schedule_vote(call, !refusal, granted, position());
    engine_->start(vote);
    engine_->wait(*vote, Deadline::after(timeout_), Engine::Waiting::thread);
    engine_->state().check_votes(
        vote->call(),
        std::span(granted.data_ptr<std::uint8_t>(), static_cast<std::size_t>(position().size)),
        refusal);
    return tensor;
  }

  std::shared_ptr<Backend> split(const std::string& /*name*/, Membership membership) override {
    if (membership.world_size == 1) return make_self_backend(membership, options_);
    membership.address = engine_->own_host();  // the subgroup has a different rank 0
    return make_remote_backend(engine_->state().backend(), membership, options_, parts_);
  }

  void abort(const std::string& reason) override { engine_->abort(reason); }
  void abort_for_mismatch(const std::string& reason) override {
    engine_->abort_for_mismatch(reason);
  }
  void leave_failing(const std::string& reason) override { engine_->leave_failing(reason); }
  bool compares_calls() const override { return engine_->compares(); }

 private:
  const Position& position() const { return engine_->position(); }
  at::Tensor votes() const { return at::empty({position().size}, at::kByte); }

  // Devices of one host reach each other faster than they convert. A part of a call goes to other
  // hosts, even if these are only network namespaces of one machine.
  bool compresses(const CollectiveArgs& args) const {
    const bool within_host = on_one_machine_ && args.part_of == nullptr;
    return asks_for_compression(args) && !(within_host && !parts_.device.is_cpu());
  }

  void begin(CopyingOperation& operation, const CollectiveArgs& args, SchedulePtr schedule) {
    if (args.part_of != nullptr) schedule->part_of(*args.part_of);
    engine_->start(schedule);
    operation.add(std::move(schedule));
  }

  void start_staged(CopyingOperation& operation, const CollectiveArgs& args) {
    // A reduce leaves the tensors of ranks other than root alone.
    const bool only_read =
        args.call.collective == Collective::reduce && args.call.root != position().rank;
    const std::vector<at::Tensor> outputs =
        only_read ? operation.inputs(args.outputs) : operation.outputs(args.outputs);
    const std::vector<at::Tensor> inputs = operation.inputs(args.inputs);
    CollectiveArgs staged = args;
    staged.outputs = outputs;
    staged.inputs = inputs;
    for (auto& schedule : parts_.schedule(staged, position())) {
      if (args.call.collective == Collective::all_to_all) {
        std::vector<std::int64_t> sizes = exchange_sizes(args.outputs, args.inputs);
        if (engine_->compares_first()) schedule->begin_with(exchange_comparison(sizes, position()));
        schedule->exchanges(std::move(sizes));
      }
      begin(operation, args, std::move(schedule));
    }
  }

  const int local_ranks_;
  const bool on_one_machine_;
  const std::chrono::milliseconds timeout_;
  const GroupOptions options_;
  std::shared_ptr<Engine> engine_;
  Parts parts_;
  std::optional<Watch> watch_;
};

// Whether PyTorch's setting asks for a comparison before each call. It matters only if the
// transport does not compare.
bool comparison_is_wanted() {
  return environment("TORCH_DISTRIBUTED_DEBUG").value_or("") == "DETAIL";
}

}  // namespace

std::shared_ptr<Backend> make_remote_backend(std::string name, const Membership& membership,
                                             const GroupOptions& options, Parts parts) {
  const Deadline deadline = Deadline::after(options.timeout);
  auto monitor = std::make_unique<PeerMonitor>(membership, name, deadline);
  Membership transports = membership;
  transports.store = std::make_shared<PrefixStore>(monitor->store_prefix() + "/", membership.store);
  Joining joining(*monitor, name, membership);
  try {
    if (parts.check) parts.check(transports, joining.context());
  } catch (const std::exception& error) {
    joining.cannot_begin(error);
    throw;
  }
  std::unique_ptr<Transport> transport;
  try {
    transport = parts.join(transports, joining, deadline);
    joining.wait_for_all(deadline);
  } catch (const std::exception& error) {
    joining.give_up(error);
    throw;
  }
  // The monitor's server listens on one address for all ranks, so all choose the same chunk size.
  const Position position{.rank = membership.rank,
                          .size = membership.world_size,
                          .chunk_bytes = monitor->within_machine()
                                             ? kChunkBytesOnOneMachine
                                             : transport->chunk_bytes_between_machines()};
  const bool compare_first = !transport->compares_calls() && comparison_is_wanted();
  auto engine = Engine::make(std::move(name), position, std::move(transport), std::move(monitor),
                             membership, compare_first);
  return std::make_shared<RemoteBackend>(membership, options, std::move(engine), std::move(parts));
}

}  // namespace lockstep::remote
