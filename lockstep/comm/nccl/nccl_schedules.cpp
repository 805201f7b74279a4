// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/nccl/nccl_schedules.h"

#include <functional>
#include <utility>

#include "lockstep/comm/nccl/nccl_transport.h"

namespace lockstep {
namespace {

using remote::make_schedule;
using remote::plain_call;
using remote::Position;
using remote::reducing_call;
using remote::SchedulePtr;
using remote::Transmission;

using Start = std::function<std::unique_ptr<Transmission>(NcclTransport&)>;
using Tensors = std::vector<at::Tensor>;

// One stage.
SchedulePtr whole(const Call& call, Start start) {
  return make_schedule(call, {{.start = [start = std::move(start)](remote::Transport& transport) {
                         return start(static_cast<NcclTransport&>(transport));
                       }}});
}

// NCCL would wait for nothing.
SchedulePtr nothing(const Call& call) {
  return make_schedule(call, {});
}

// So many places, and a tensor in one of them.
Tensors at_place(int place, const at::Tensor& tensor, int size) {
  Tensors tensors(static_cast<std::size_t>(size));
  tensors[static_cast<std::size_t>(position)] = tensor;
  return tensors;
}

SchedulePtr exchange(const Call& call, Tensors outgoing, Tensors incoming) {
  return whole(call, [outgoing = std::move(outgoing),
                      incoming = std::move(incoming)](NcclTransport& transport) {
    return transport.exchange_tensors(outgoing, incoming);
  });
}

SchedulePtr all_reduce(const at::Tensor& tensor, AllReduceOptions options, Position) {
  check_nccl_type(tensor.scalar_type());
  const Call call = reducing_call(Collective::all_reduce, tensor, options);
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclTransport& transport) {
    return transport.all_reduce(tensor, options.op, options.scale);
  });
}

SchedulePtr reduce(const at::Tensor& tensor, int root, AllReduceOptions options, Position) {
  check_nccl_type(tensor.scalar_type());
  Call call = reducing_call(Collective::reduce, tensor, options);
  call.root = root;
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclTransport& transport) {
    return transport.reduce(tensor, root, options.op, options.scale);
  });
}

SchedulePtr reduce_scatter(const at::Tensor& output, Tensors inputs, AllReduceOptions options,
                           Position) {
  check_nccl_type(output.scalar_type());
  const Call call = reducing_call(Collective::reduce_scatter, output, options);
  if (output.numel() == 0) return nothing(call);
  return whole(call, [=](NcclTransport& transport) {
    return transport.reduce_scatter(inputs, output, options.op, options.scale);
  });
}

SchedulePtr broadcast(const at::Tensor& tensor, int root, Position) {
  const Call call = plain_call(Collective::broadcast, tensor, root);
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclTransport& transport) { return transport.broadcast(tensor, root); });
}

SchedulePtr all_gather(Tensors outputs, const at::Tensor& input, Position position) {
  const Call call = plain_call(Collective::all_gather, input);
  if (input.numel() == 0) return nothing(call);
  return exchange(call, Tensors(static_cast<std::size_t>(position.size), input),
                  std::move(outputs));
}

SchedulePtr gather(Tensors outputs, const at::Tensor& input, int root, Position position) {
  const Call call = plain_call(Collective::gather, input, root);
  if (input.numel() == 0) return nothing(call);
  return exchange(call, at_place(root, input, position.size), std::move(outputs));
}

SchedulePtr scatter(const at::Tensor& output, Tensors inputs, int root, Position position) {
  const Call call = plain_call(Collective::scatter, output, root);
  if (output.numel() == 0) return nothing(call);
  return exchange(call, std::move(inputs), at_place(root, output, position.size));
}

SchedulePtr all_to_all(Tensors outputs, Tensors inputs) {
  return exchange({.collective = Collective::all_to_all}, std::move(inputs), std::move(outputs));
}

}  // namespace

remote::Schedules nccl_schedules(at::Device device) {
  return {.device = device,
          .all_reduce = all_reduce,
          .reduce = reduce,
          .reduce_scatter = reduce_scatter,
          .broadcast = broadcast,
          .all_gather = all_gather,
          .gather = gather,
          .scatter = scatter,
          .all_to_all = all_to_all};
}

}  // namespace lockstep
