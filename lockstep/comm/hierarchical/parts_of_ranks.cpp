// SPDX-License-Identifier: BSD-3-Clause
// Gathers and adds up the parts of ranks within and between hosts.
#include "lockstep/comm/hierarchical/parts_of_ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "lockstep/comm/hierarchical/phases.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::hierarchical {
namespace {

using Parts = std::vector<at::Tensor>;

// Calls the function for ranges of a part's elements. A range of all parts together is a piece.
template <class Function>
void for_ranges(const at::Tensor& part, std::size_t ranks, const Function& function) {
  const auto bytes_per_element = static_cast<std::int64_t>(ranks * part.element_size());
  const std::int64_t per_range = std::max<std::int64_t>(1, kPieceBytes / bytes_per_element);
  for (std::int64_t begin = 0; begin < part.numel(); begin += per_range) {
    function(ElementRange{begin, std::min(per_range, part.numel() - begin)});
  }
}

at::Tensor within_range(const at::Tensor& part, ElementRange range) {
  return part.narrow(0, range.begin, range.count);
}

Parts within_range(const Parts& parts, ElementRange range) {
  Parts result;
  result.reserve(parts.size());
  for (const at::Tensor& part : parts) result.push_back(within_range(part, range));
  return result;
}

// The parts of these ranks, in this order.
Parts of_ranks(const Parts& parts, const std::vector<int>& ranks) {
  Parts result;
  result.reserve(ranks.size());
  for (const int rank : ranks) result.push_back(parts[static_cast<std::size_t>(rank)]);
  return result;
}

// The call of an inner group for one part.
Call inner_call(Collective collective, const at::Tensor& part) {
  return {.collective = collective, .type = part.scalar_type(), .elements = part.numel()};
}

Work start_gather(Backend& group, const Parts& outputs, const at::Tensor& input,
                  const Call* part_of = nullptr) {
  return group.start({.call = inner_call(Collective::all_gather, input),
                      .outputs = outputs,
                      .inputs = input,
                      .part_of = part_of});
}

}  // namespace

// The parts of this host come first, since they need no other host.
void gather_parts(HierarchicalOperation& operation, const std::shared_ptr<HierarchyLevels>& levels,
                  const Call& call, const CollectiveArgs& args) {
  const at::Tensor own = operation.flat_input(args.inputs[0]);
  Parts all;
  for (const at::Tensor& output : args.outputs) all.push_back(operation.flat_output(output));
  for_ranges(own, all.size(), [&](ElementRange range) {
    operation.start(
        {[levels, parts = within_range(all, range), part = within_range(own, range)] {
           return works_of(
               start_gather(*levels->reducing, of_ranks(parts, levels->ranks_of_host()), part));
         },
         [levels, call, parts = within_range(all, range), part = within_range(own, range)] {
           return between_hosts_part(*levels, call, [&] {
             return start_gather(*levels->between_hosts,
                                 of_ranks(parts, levels->ranks_between_hosts()), part, &call);
           });
         },
         [levels, parts = within_range(all, range)] {
           std::vector<Work> works;
           for (const std::vector<int>& ranks : levels->hosts) {
             if (&ranks == &levels->ranks_of_host()) continue;
             const Parts of_host = of_ranks(parts, ranks);
             works.push_back(start_gather(*levels->sharing, of_host,
                                          of_host[static_cast<std::size_t>(levels->index)]));
           }
           return works;
         }});
  });
}

// Each rank gets its host's sums for the ranks with its index, one on each host, and those ranks
// add up what they got.
void reduce_parts(HierarchicalOperation& operation, const std::shared_ptr<HierarchyLevels>& levels,
                  const Call& call, const CollectiveArgs& args) {
  Parts all;
  for (const at::Tensor& input : args.inputs) all.push_back(operation.flat_term(input));
  const ReduceOp op = call.op == ReduceOp::mean ? ReduceOp::sum : call.op;
  const double scale = scale_over(static_cast<int>(all.size()), call.op, call.scale);
  const at::Tensor output = operation.flat_sum(args.outputs[0]);
  for_ranges(output, all.size(), [&](ElementRange range) {
    const auto sums = std::make_shared<Parts>();
    const at::Tensor sum = within_range(output, range);
    Call inner = inner_call(Collective::reduce_scatter, sum);
    inner.op = op;
    Call scaled = inner;
    scaled.scale = scale;
    operation.start({[levels, parts = within_range(all, range), sums, inner] {
                       const auto hosts = static_cast<std::int64_t>(levels->hosts.size());
                       // One tensor, which can be sent as it is.
                       *sums = at::empty({hosts, inner.elements}, parts[0].options()).unbind();
                       std::vector<Work> works;
                       for (std::size_t host = 0; host < levels->hosts.size(); ++host) {
                         works.push_back(levels->reducing->start(
                             {.call = inner,
                              .outputs = (*sums)[host],
                              .inputs = of_ranks(parts, levels->hosts[host])}));
                       }
                       return works;
                     },
                     [levels, call, sums, sum, scaled] {
                       return between_hosts_part(*levels, call, [&] {
                         return levels->between_hosts->start(
                             {.call = scaled, .outputs = sum, .inputs = *sums, .part_of = &call});
                       });
                     }});
  });
}

}  // namespace lockstep::hierarchical
