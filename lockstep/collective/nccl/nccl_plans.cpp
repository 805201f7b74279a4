// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/nccl/nccl_plans.h"

#include <functional>
#include <utility>

#include "lockstep/collective/nccl/nccl_carrier.h"

namespace lockstep {
namespace {

using network::make_plan;
using network::Place;
using network::plain_call;
using network::Plan;
using network::reducing_call;
using network::Transmission;

using Start = std::function<std::unique_ptr<Transmission>(NcclCarrier&)>;
using Tensors = std::vector<at::Tensor>;

// One step.
Plan whole(const Call& call, Start start) {
  return make_plan(call, {{.start = [start = std::move(start)](network::Carrier& carrier) {
                     return start(static_cast<NcclCarrier&>(carrier));
                   }}});
}

// NCCL would wait for nothing.
Plan nothing(const Call& call) {
  return make_plan(call, {});
}

// So many places, and a tensor in one of them.
Tensors at_place(int place, const at::Tensor& tensor, int size) {
  Tensors tensors(static_cast<std::size_t>(size));
  tensors[static_cast<std::size_t>(place)] = tensor;
  return tensors;
}

Plan exchange(const Call& call, Tensors outgoing, Tensors incoming) {
  return whole(
      call, [outgoing = std::move(outgoing), incoming = std::move(incoming)](NcclCarrier& carrier) {
        return carrier.exchange_tensors(outgoing, incoming);
      });
}

Plan all_reduce(const at::Tensor& tensor, AllReduceOptions options, Place) {
  check_nccl_type(tensor.scalar_type());
  const Call call = reducing_call(Collective::all_reduce, tensor, options);
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclCarrier& carrier) {
    return carrier.all_reduce(tensor, options.op, options.scale);
  });
}

Plan reduce(const at::Tensor& tensor, int root, AllReduceOptions options, Place) {
  check_nccl_type(tensor.scalar_type());
  Call call = reducing_call(Collective::reduce, tensor, options);
  call.root = root;
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclCarrier& carrier) {
    return carrier.reduce(tensor, root, options.op, options.scale);
  });
}

Plan reduce_scatter(const at::Tensor& output, Tensors inputs, AllReduceOptions options, Place) {
  check_nccl_type(output.scalar_type());
  const Call call = reducing_call(Collective::reduce_scatter, output, options);
  if (output.numel() == 0) return nothing(call);
  return whole(call, [=](NcclCarrier& carrier) {
    return carrier.reduce_scatter(inputs, output, options.op, options.scale);
  });
}

Plan broadcast(const at::Tensor& tensor, int root, Place) {
  const Call call = plain_call(Collective::broadcast, tensor, root);
  if (tensor.numel() == 0) return nothing(call);
  return whole(call, [=](NcclCarrier& carrier) { return carrier.broadcast(tensor, root); });
}

Plan all_gather(Tensors outputs, const at::Tensor& input, Place place) {
  const Call call = plain_call(Collective::all_gather, input);
  if (input.numel() == 0) return nothing(call);
  return exchange(call, Tensors(static_cast<std::size_t>(place.size), input), std::move(outputs));
}

Plan gather(Tensors outputs, const at::Tensor& input, int root, Place place) {
  const Call call = plain_call(Collective::gather, input, root);
  if (input.numel() == 0) return nothing(call);
  return exchange(call, at_place(root, input, place.size), std::move(outputs));
}

Plan scatter(const at::Tensor& output, Tensors inputs, int root, Place place) {
  const Call call = plain_call(Collective::scatter, output, root);
  if (output.numel() == 0) return nothing(call);
  return exchange(call, std::move(inputs), at_place(root, output, place.size));
}

Plan all_to_all(Tensors outputs, Tensors inputs) {
  return exchange({.collective = Collective::all_to_all}, std::move(inputs), std::move(outputs));
}

}  // namespace

network::Plans nccl_plans(at::Device device) {
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
