// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/network/plans.h"

#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/collective/calls_differ.h"
#include "lockstep/collective/exchange_sizes.h"
#include "lockstep/collective/network/payload.h"
#include "lockstep/core/error.h"

namespace lockstep::network {
namespace {

std::vector<std::int64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(static_cast<std::int64_t>(tensor.nbytes()));
  return sizes;
}

// Everybody's tensors to everybody, as far as the lists go.
Step exchange_lists(std::vector<at::Tensor> outgoing, std::vector<std::int64_t> outgoing_bytes,
                    std::vector<at::Tensor> incoming, std::vector<std::int64_t> incoming_bytes) {
  const auto arrived = std::make_shared<at::Tensor>();
  return {.start =
              [=](Carrier& carrier) {
                const auto total =
                    std::accumulate(incoming_bytes.begin(), incoming_bytes.end(), std::int64_t{0});
                *arrived = some_bytes(total);
                return carrier.exchange(joined(outgoing), outgoing_bytes, *arrived, incoming_bytes);
              },
          .finish = [=] { take_apart(*arrived, incoming); }};
}

// So many bytes to or from root, none to the others.
std::vector<std::int64_t> for_root(int root, std::int64_t bytes, int size) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(size), 0);
  result[static_cast<std::size_t>(root)] = bytes;
  return result;
}

int tag(Lane lane, bool payload) {
  return 2 * static_cast<int>(lane) + (payload ? 1 : 0);
}

at::Tensor description_of(const Call& call) {
  const at::Tensor bytes = some_bytes(sizeof call).zero_();
  std::memcpy(bytes.data_ptr(), &call, sizeof call);
  return bytes;
}

Call described_by(const std::byte* bytes) {
  Call call;
  std::memcpy(&call, bytes, sizeof call);
  return call;
}

}  // namespace

Call plain_call(Collective collective, const at::Tensor& tensor, int root) {
  return {.collective = collective,
          .type = tensor.scalar_type(),
          .root = root,
          .elements = tensor.numel()};
}

Step meeting(Place place) {
  const std::vector<std::int64_t> nothing(static_cast<std::size_t>(place.size), 0);
  return {.start = [=](Carrier& carrier) {
    return carrier.all_gather(some_bytes(0), some_bytes(0), nothing);
  }};
}

Plan make_plan(const Call& call, std::vector<Step> steps) {
  return std::make_shared<PlannedCall>(call, std::move(steps));
}

// Root sends its block to each rank; or the library's algorithm does, after a meeting, since it
// does not compare calls.
Plan plan_broadcast(const at::Tensor& tensor, int root, Place place) {
  const Call call = plain_call(Collective::broadcast, tensor, root);
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (bytes <= kSmallBytes || place.size == 2) {
    return make_plan(call, {{.start = [=](Carrier& carrier) {
                       return carrier.all_gather(
                           place.rank == root ? bytes_of(tensor) : some_bytes(0), bytes_of(tensor),
                           for_root(root, bytes, place.size));
                     }}});
  }
  return make_plan(
      call, {meeting(place),
             {.start = [=](Carrier& carrier) { return carrier.broadcast(bytes_of(tensor), root); },
              .after = 0}});
}

Plan plan_all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, Place place) {
  const Call call = plain_call(Collective::all_gather, input);
  if (input.numel() == 0) return make_plan(call, {meeting(place)});
  const auto bytes = static_cast<std::int64_t>(input.nbytes());
  const auto all = std::make_shared<at::Tensor>();
  return make_plan(call, {{.start =
                               [=](Carrier& carrier) {
                                 *all = some_bytes(place.size * bytes);
                                 return carrier.all_gather(
                                     bytes_of(input), *all,
                                     std::vector(static_cast<std::size_t>(place.size), bytes));
                               },
                           .finish = [=] { take_apart(*all, outputs); }}});
}

Plan plan_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, int root, Place place) {
  const Call call = plain_call(Collective::gather, input, root);
  if (input.numel() == 0) return make_plan(call, {meeting(place)});
  auto incoming = sizes_of(outputs);
  incoming.resize(static_cast<std::size_t>(place.size), 0);
  return make_plan(call, {exchange_lists({input}, for_root(root, input.nbytes(), place.size),
                                         outputs, incoming)});
}

Plan plan_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root, Place place) {
  const Call call = plain_call(Collective::scatter, output, root);
  if (output.numel() == 0) return make_plan(call, {meeting(place)});
  auto outgoing = sizes_of(inputs);
  outgoing.resize(static_cast<std::size_t>(place.size), 0);
  return make_plan(call, {exchange_lists(inputs, outgoing, {output},
                                         for_root(root, output.nbytes(), place.size))});
}

Plan plan_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) {
  return make_plan({.collective = Collective::all_to_all},
                   {exchange_lists(inputs, sizes_of(inputs), outputs, sizes_of(outputs))});
}

Plan plan_vote(const Call& call, bool vote, const at::Tensor& votes, Place place) {
  const at::Tensor own = some_bytes(1).fill_(vote ? 1 : 0);
  return make_plan(call, {{.start = [=](Carrier& carrier) {
                     return carrier.all_gather(
                         own, votes,
                         std::vector<std::int64_t>(static_cast<std::size_t>(place.size), 1));
                   }}});
}

Plan plan_send(const at::Tensor& tensor, int to, Lane lane) {
  const Call call = plain_call(Collective::send, tensor, to);
  const at::Tensor description = description_of(call);
  std::vector<Step> steps{
      {.start = [=](Carrier& carrier) { return carrier.send(description, to, tag(lane, false)); }}};
  if (tensor.numel() > 0) {
    steps.push_back({.start = [=](Carrier& carrier) {
      return carrier.send(bytes_of(tensor), to, tag(lane, true));
    }});
  }
  return make_plan(call, std::move(steps));
}

Plan plan_receive(const at::Tensor& tensor, int from, Lane lane) {
  const Call call = plain_call(Collective::recv, tensor, from);
  const at::Tensor description = description_of(call);
  std::vector<Step> steps{
      {.start =
           [=](Carrier& carrier) { return carrier.receive(description, from, tag(lane, false)); },
       .finish =
           [=] {
             const Call sent = described_by(first_byte(description));
             if (sent.elements == call.elements && sent.type == call.type) return;
             throw UsageError(fmt::format(
                 "rank {} sent {} {} elements, but this rank expects {} {}; send and recv must be "
                 "alike",
                 from, sent.elements, c10::toString(sent.type), call.elements,
                 c10::toString(call.type)));
           }}};
  if (tensor.numel() > 0) {
    steps.push_back({.start =
                         [=](Carrier& carrier) {
                           return carrier.receive(bytes_of(tensor), from, tag(lane, true));
                         },
                     .after = 0});
  }
  return make_plan(call, std::move(steps));
}

Step comparison(const Call& call, Place place) {
  const at::Tensor own = description_of(call);
  const at::Tensor all = some_bytes(place.size * static_cast<std::int64_t>(sizeof call));
  return {.start =
              [=](Carrier& carrier) {
                return carrier.all_gather(
                    own, all,
                    std::vector<std::int64_t>(static_cast<std::size_t>(place.size), sizeof call));
              },
          .finish =
              [=] {
                const Call mine = described_by(first_byte(own));
                for (int rank = 0; rank < place.size; ++rank) {
                  const Call other = described_by(first_byte(all) + rank * sizeof call);
                  if (other == mine) continue;
                  throw CallsDiffer("", mine, rank, fmt::format("rank {}", rank), other);
                }
              }};
}

Step exchange_comparison(const std::vector<std::int64_t>& sizes, Place place) {
  const at::Tensor own = at::tensor(sizes, at::kLong);
  const auto count = static_cast<std::int64_t>(sizes.size());
  const at::Tensor all = at::empty({place.size, count}, at::kLong);
  return {.start =
              [=](Carrier& carrier) {
                return carrier.all_gather(bytes_of(own), bytes_of(all),
                                          std::vector(static_cast<std::size_t>(place.size),
                                                      static_cast<std::int64_t>(own.nbytes())));
              },
          .finish =
              [=] {
                std::vector<const std::int64_t*> of_ranks;
                for (int rank = 0; rank < place.size; ++rank) {
                  of_ranks.push_back(all.data_ptr<std::int64_t>() + rank * count);
                }
                const std::string fault = exchange_fault(of_ranks);
                if (!fault.empty()) throw UsageError(fault);
              }};
}

}  // namespace lockstep::network
