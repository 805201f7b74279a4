// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/network/plans.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "lockstep/collective/kernels/reduce.h"
#include "lockstep/collective/piece.h"
#include "lockstep/core/error.h"

namespace lockstep::network {
namespace {

// Tensors up to this size go to everybody as a whole, in one step instead of two.
constexpr std::int64_t kSmallBytes = 8 * 1024;

at::Tensor some_bytes(std::int64_t bytes) try {
  return at::empty({bytes}, at::kByte);
} catch (const std::exception& error) {
  throw OutOfMemory(fmt::format("this rank has no memory for {} bytes on their way: {}", bytes,
                                first_line(error)));
}

std::byte* begin(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

// A part of a tensor's bytes, which stay there as long as the part.
at::Tensor bytes_of(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  if (!tensor.is_cpu()) return tensor.detach().view({-1}).view(at::kByte).narrow(0, first, count);
  return at::from_blob(
      begin(tensor) + first, {count}, [storage = tensor.storage()](void*) {}, at::kByte);
}
at::Tensor bytes_of(const at::Tensor& tensor) {
  return bytes_of(tensor, 0, static_cast<std::int64_t>(tensor.nbytes()));
}

double kernel_scale(AllReduceOptions options, int size) {
  return options.op == ReduceOp::mean ? options.scale / size : options.scale;
}

// How many of so many elements each rank adds up.
std::vector<std::int64_t> shares(std::int64_t elements, int size) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < size; ++rank) {
    result.push_back(elements * (rank + 1) / size - elements * rank / size);
  }
  return result;
}

std::vector<std::int64_t> in_bytes(std::vector<std::int64_t> elements, std::int64_t element_bytes) {
  for (auto& count : elements) count *= element_bytes;
  return elements;
}

// Adds up one run of `count` elements from each rank, which lie one behind the other.
void reduce_runs(const at::Tensor& runs, std::byte* result, std::int64_t count, const Call& call,
                 double scale, int size) {
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) {
    sources.push_back(begin(runs) +
                      rank * count * static_cast<std::int64_t>(c10::elementSize(call.type)));
  }
  void* destination = result;
  reduce(sources, {&destination, 1}, count, call.type, call.op, scale);
}

// Of nearly that size and all alike: a small rest would cost as much time as a whole one.
std::vector<ElementRange> chunks_of(const at::Tensor& tensor, std::int64_t bytes) {
  const std::int64_t elements = tensor.numel();
  const std::int64_t wanted =
      std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(tensor.element_size()));
  const std::int64_t about = std::max<std::int64_t>(1, (elements + wanted / 2) / wanted);
  const std::int64_t per_chunk = (elements + about - 1) / about;
  std::vector<ElementRange> chunks;
  for (std::int64_t begin = 0; begin < elements; begin += per_chunk) {
    chunks.push_back({begin, std::min(per_chunk, elements - begin)});
  }
  return chunks;
}

// Two ranks send each other everything and both add it up: that is as many bytes as shares and
// their sums would be, in one step instead of two.
std::vector<Step> reduce_between_two(const at::Tensor& tensor, const Call& call, double scale,
                                     Place place) {
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  std::vector<Step> steps;
  for (const ElementRange chunk : chunks_of(tensor, place.chunk_bytes / 2)) {
    const at::Tensor own = bytes_of(tensor, chunk.begin * width, chunk.count * width);
    const auto other = std::make_shared<at::Tensor>();
    std::vector<std::int64_t> to_other(2, 0);
    to_other[static_cast<std::size_t>(1 - place.rank)] = chunk.count * width;
    steps.push_back({.start =
                         [=](Carrier& carrier) {
                           *other = some_bytes(chunk.count * width);
                           return carrier.exchange(own, to_other, *other, to_other);
                         },
                     .finish =
                         [=] {
                           std::array<const void*, 2> sources{begin(own), begin(*other)};
                           if (place.rank == 1) std::swap(sources[0], sources[1]);
                           void* const sum = begin(own);
                           reduce(sources, {&sum, 1}, chunk.count, call.type, call.op, scale);
                           other->reset();
                         },
                     // Two halves are as much on its way as a chunk's shares and their sums.
                     .after = std::max(-1, static_cast<int>(steps.size()) - 2)});
  }
  return steps;
}

// To all ranks, or to one.
std::vector<Step> reduce_whole(const at::Tensor& tensor, const Call& call, double scale,
                               Place place) {
  const std::int64_t bytes = static_cast<std::int64_t>(tensor.nbytes());
  const at::Tensor all = some_bytes(place.size * bytes);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(place.size), bytes);
  const bool receives = call.root < 0 || call.root == place.rank;
  return {
      {.start = [=](Carrier& carrier) { return carrier.all_gather(bytes_of(tensor), all, sizes); },
       .finish =
           [=] {
             if (receives) {
               reduce_runs(all, begin(tensor), tensor.numel(), call, scale, place.size);
             }
           }}};
}

// Chunk for chunk: shares to those who add them up, and the sums to everybody, or to root. While
// one chunk is added up the next one is on its way, but not more, so that memory is bounded.
std::vector<Step> reduce_in_chunks(const at::Tensor& tensor, const Call& call, double scale,
                                   Place place) {
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  std::vector<Step> exchanges;
  std::vector<Step> distributions;
  for (const ElementRange range : chunks_of(tensor, place.chunk_bytes)) {
    const std::int64_t first = range.begin;
    const std::int64_t count = range.count;
    const auto counts = shares(count, place.size);
    const std::int64_t own = counts[static_cast<std::size_t>(place.rank)];
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + place.rank, std::int64_t{0});
    const auto runs = std::make_shared<at::Tensor>();
    const at::Tensor chunk = bytes_of(tensor, first * width, count * width);
    // Of a rank that is not root, the tensor must not change.
    const at::Tensor sum = call.root < 0 ? bytes_of(tensor, (first + before) * width, own * width)
                                         : some_bytes(own * width);
    exchanges.push_back({.start =
                             [=](Carrier& carrier) {
                               *runs = some_bytes(place.size * own * width);
                               return carrier.exchange(
                                   chunk, in_bytes(counts, width), *runs,
                                   std::vector(static_cast<std::size_t>(place.size), own * width));
                             },
                         .finish =
                             [=] {
                               reduce_runs(*runs, begin(sum), own, call, scale, place.size);
                               runs->reset();
                             }});
    distributions.push_back({.start = [=](Carrier& carrier) {
      if (call.root < 0) return carrier.all_gather(sum, chunk, in_bytes(counts, width));
      std::vector<std::int64_t> out(static_cast<std::size_t>(place.size), 0);
      std::vector<std::int64_t> in(out.size(), 0);
      out[static_cast<std::size_t>(call.root)] = own * width;
      if (place.rank == call.root) in = in_bytes(counts, width);
      return carrier.exchange(sum, out, place.rank == call.root ? chunk : some_bytes(0), in);
    }});
  }
  // e0 e1 d0 e2 d1 e3 d2 ...: each e waits for the d two chunks before, each d for its own e.
  std::vector<Step> steps;
  std::vector<int> place_of_exchange;
  std::vector<int> place_of_distribution;
  const auto add_exchange = [&](std::size_t number) {
    if (number >= exchanges.size()) return;
    exchanges[number].after = number < 2 ? -1 : place_of_distribution[number - 2];
    place_of_exchange.push_back(static_cast<int>(steps.size()));
    steps.push_back(std::move(exchanges[number]));
  };
  add_exchange(0);
  for (std::size_t number = 0; number < distributions.size(); ++number) {
    add_exchange(number + 1);
    distributions[number].after = place_of_exchange[number];
    place_of_distribution.push_back(static_cast<int>(steps.size()));
    steps.push_back(std::move(distributions[number]));
  }
  return steps;
}

Plan plan_reduction(const Call& call, const at::Tensor& tensor, double scale, Place place) {
  if (tensor.numel() == 0) return make_plan(call, {});
  if (place.size == 2 && call.root < 0) {
    return make_plan(call, reduce_between_two(tensor, call, scale, place));
  }
  const bool small = static_cast<std::int64_t>(tensor.nbytes()) <= kSmallBytes;
  return make_plan(call, small ? reduce_whole(tensor, call, scale, place)
                               : reduce_in_chunks(tensor, call, scale, place));
}

// Tensors of equal size, one behind the other.
at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  const at::Tensor result = some_bytes(bytes);
  std::byte* place = begin(result);
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(place, tensor.data_ptr(), tensor.nbytes());
    place += tensor.nbytes();
  }
  return result;
}

void take_apart(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  const std::byte* place = begin(bytes);
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), place, tensor.nbytes());
    place += tensor.nbytes();
  }
}

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

Call reducing_call(Collective collective, const at::Tensor& tensor, AllReduceOptions options) {
  return {.collective = collective,
          .op = options.op,
          .type = tensor.scalar_type(),
          .elements = tensor.numel(),
          .scale = options.scale};
}

Call plain_call(Collective collective, const at::Tensor& tensor, int root) {
  return {.collective = collective,
          .type = tensor.scalar_type(),
          .root = root,
          .elements = tensor.numel()};
}

Plan make_plan(const Call& call, std::vector<Step> steps) {
  return std::make_shared<PlannedCall>(call, std::move(steps));
}

Plan plan_all_reduce(const at::Tensor& tensor, AllReduceOptions options, Place place) {
  return plan_reduction(reducing_call(Collective::all_reduce, tensor, options), tensor,
                        kernel_scale(options, place.size), place);
}

Plan plan_reduce(const at::Tensor& tensor, int root, AllReduceOptions options, Place place) {
  Call call = reducing_call(Collective::reduce, tensor, options);
  call.root = root;
  return plan_reduction(call, tensor, kernel_scale(options, place.size), place);
}

Plan plan_reduce_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs,
                         AllReduceOptions options, Place place) {
  const Call call = reducing_call(Collective::reduce_scatter, output, options);
  if (output.numel() == 0) return make_plan(call, {});
  const auto bytes = static_cast<std::int64_t>(output.nbytes());
  const double scale = kernel_scale(options, place.size);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(place.size), bytes);
  const auto runs = std::make_shared<at::Tensor>();
  return make_plan(
      call,
      {{.start =
            [=](Carrier& carrier) {
              *runs = some_bytes(place.size * bytes);
              return carrier.exchange(joined(inputs), sizes, *runs, sizes);
            },
        .finish =
            [=] { reduce_runs(*runs, begin(output), output.numel(), call, scale, place.size); }}});
}

Plan plan_broadcast(const at::Tensor& tensor, int root) {
  const Call call = plain_call(Collective::broadcast, tensor, root);
  if (tensor.numel() == 0) return make_plan(call, {});
  return make_plan(
      call,
      {{.start = [=](Carrier& carrier) { return carrier.broadcast(bytes_of(tensor), root); }}});
}

Plan plan_all_gather(std::vector<at::Tensor> outputs, const at::Tensor& input, Place place) {
  const Call call = plain_call(Collective::all_gather, input);
  if (input.numel() == 0) return make_plan(call, {});
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
  if (input.numel() == 0) return make_plan(call, {});
  auto incoming = sizes_of(outputs);
  incoming.resize(static_cast<std::size_t>(place.size), 0);
  return make_plan(call, {exchange_lists({input}, for_root(root, input.nbytes(), place.size),
                                         outputs, incoming)});
}

Plan plan_scatter(const at::Tensor& output, std::vector<at::Tensor> inputs, int root, Place place) {
  const Call call = plain_call(Collective::scatter, output, root);
  if (output.numel() == 0) return make_plan(call, {});
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
             const Call sent = described_by(begin(description));
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
                const Call first = described_by(begin(all));
                for (int rank = 1; rank < place.size; ++rank) {
                  const Call other = described_by(begin(all) + rank * sizeof call);
                  if (other == first) continue;
                  throw UsageError(fmt::format(
                      "rank 0 called {}, but rank {} called {}; all ranks must make the same calls "
                      "in the same order",
                      describe(first), rank, describe(other)));
                }
              }};
}

}  // namespace lockstep::network
