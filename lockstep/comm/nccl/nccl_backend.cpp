// SPDX-License-Identifier: BSD-3-Clause
// Checks that NCCL can be used, joins ranks over it, and schedules the collectives that it carries
// out as a whole: NCCL sums in an order of its own, and rounds half types at each addition.
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/nccl/nccl_library.h"
#include "lockstep/comm/nccl/nccl_transport.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/network_interfaces.h"

namespace lockstep::nccl {
namespace {

using remote::make_schedule;
using remote::Position;
using remote::SchedulePtr;
using remote::Transmission;

using Start = std::function<std::unique_ptr<Transmission>(NcclTransport&)>;
using Tensors = std::vector<at::Tensor>;

// One stage; none if there are no elements, since NCCL would wait needlessly.
SchedulePtr whole(const Call& call, Start start) {
  if (call.elements == 0 && call.collective != Collective::all_to_all) {
    return make_schedule(call, {});
  }
  return make_schedule(call, {{.start = [start = std::move(start)](remote::Transport& transport) {
                         return start(static_cast<NcclTransport&>(transport));
                       }}});
}

SchedulePtr exchange(const Call& call, Tensors outgoing, Tensors incoming) {
  return whole(call, [outgoing = std::move(outgoing),
                      incoming = std::move(incoming)](NcclTransport& transport) {
    return transport.exchange_tensors(outgoing, incoming);
  });
}

// The tensor in root's place, and undefined ones for the other ranks.
Tensors only_with(int root, const at::Tensor& tensor, Position position) {
  Tensors tensors(static_cast<std::size_t>(position.size));
  tensors[static_cast<std::size_t>(root)] = tensor;
  return tensors;
}

// A schedule for each output: start(transport, call, output).
template <class StartOutput>
std::vector<SchedulePtr> for_each_output(const CollectiveArgs& args, StartOutput start) {
  std::vector<SchedulePtr> schedules;
  for (std::size_t i = 0; i < args.outputs.size(); ++i) {
    const Call call = args.call_of_output(i);
    schedules.push_back(
        whole(call, [start, call, output = at::Tensor(args.outputs[i])](NcclTransport& transport) {
          return start(transport, call, output);
        }));
  }
  return schedules;
}

// Makes schedules for a backend whose transport is an NcclTransport. UsageError for types that NCCL
// cannot reduce.
std::vector<SchedulePtr> schedule_nccl(const CollectiveArgs& args, Position position) {
  const Call& call = args.call;
  if (reduces(call.collective)) {
    for (const at::Tensor& output : args.outputs)
      check_nccl_type(c10::toRealValueType(output.scalar_type()));
  }
  switch (call.collective) {
    case Collective::all_reduce:
      return for_each_output(
          args, [](NcclTransport& transport, const Call& call, const at::Tensor& output) {
            return transport.all_reduce(output, call.op, call.scale);
          });
    case Collective::reduce:
      return for_each_output(
          args, [](NcclTransport& transport, const Call& call, const at::Tensor& output) {
            return transport.reduce(output, call.root, call.op, call.scale);
          });
    case Collective::broadcast:
      return for_each_output(
          args, [](NcclTransport& transport, const Call& call, const at::Tensor& output) {
            return transport.broadcast(output, call.root);
          });
    case Collective::reduce_scatter:
      return {whole(call, [call, inputs = args.inputs.vec(),
                           output = args.outputs[0]](NcclTransport& transport) {
        return transport.reduce_scatter(inputs, output, call.op, call.scale);
      })};
    case Collective::all_gather:
      return {exchange(call, Tensors(static_cast<std::size_t>(position.size), args.inputs[0]),
                       args.outputs.vec())};
    case Collective::gather:
      return {exchange(call, only_with(call.root, args.inputs[0], position), args.outputs.vec())};
    case Collective::scatter:
      return {exchange(call, args.inputs.vec(), only_with(call.root, args.outputs[0], position))};
    case Collective::all_to_all:
      return {exchange(call, args.inputs.vec(), args.outputs.vec())};
    case Collective::send:
    case Collective::recv:
    case Collective::barrier:
    case Collective::empty:
    case Collective::split:
      break;  // messages, and calls without tensors, are scheduled alike for all transports
  }
  return {};
}

}  // namespace
}  // namespace lockstep::nccl

namespace lockstep {

std::string nccl_version() {
  return nccl::NcclLibrary::get().version();
}

std::shared_ptr<Backend> make_nccl_backend(const Membership& membership,
                                           const GroupOptions& options, const std::string& name) {
  const at::Device device = options.device;
  if (!device.is_cuda()) {
    throw UsageError({.component = name,
                      .operation = "joining",
                      .rank = membership.rank,
                      .size = membership.world_size},
                     fmt::format("NCCL joins GPUs, and this rank's device is {}", device.str()),
                     "use shm or gloo for CPUs");
  }
  // Adds the device to errors of NCCL.
  const auto on_device = [device, name](const Membership& member, const auto& function) {
    try {
      return function();
    } catch (const TimeoutError&) {
      throw;
    } catch (const BackendError&) {
      rethrow_within({.component = name,
                      .operation = fmt::format("joining with {}", device.str()),
                      .rank = member.rank,
                      .size = member.world_size});
    }
  };
  return remote::make_remote_backend(
      name, membership, options,
      {.check =
           [on_device](const Membership& member, const ErrorContext& context) {
             check_interfaces(context, "NCCL_SOCKET_IFNAME", nccl_uses);
             on_device(member, [] { nccl::NcclLibrary::get(); });
           },
       .join = [on_device, device](const Membership& member, remote::Joining& joining,
                                   const Deadline& deadline) -> std::unique_ptr<remote::Transport> {
         return on_device(
             member, [&] { return nccl::make_nccl_transport(member, device, joining, deadline); });
       },
       .schedule = nccl::schedule_nccl,
       .device = device});
}

}  // namespace lockstep
