// SPDX-License-Identifier: BSD-3-Clause
// Schedules of the collectives that combine the ranks' elements.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "lockstep/comm/remote/payload.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::remote {
namespace {

// The number of elements that each rank adds up.
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

// Adds up one run of `count` elements from each rank; the runs lie one after the other.
void reduce_runs(const at::Tensor& runs, std::byte* result, std::int64_t count, const Call& call,
                 double scale, int size) {
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) {
    sources.push_back(first_byte(runs) +
                      rank * count * static_cast<std::int64_t>(c10::elementSize(call.type)));
  }
  void* destination = result;
  reduce(sources, {&destination, 1}, count, call.type, call.op, scale);
}

// Equal chunks of about this size: a small remainder would take as long as a whole chunk.
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

// Two ranks send each other everything, and both add it up. That moves the same number of bytes as
// shares and their sums would, in one stage instead of two.
std::vector<Stage> reduce_between_two(const at::Tensor& tensor, const Call& call, double scale,
                                      Position position) {
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  std::vector<Stage> stages;
  for (const ElementRange chunk : chunks_of(tensor, position.chunk_bytes / 2)) {
    const at::Tensor own = bytes_of(tensor, chunk.begin * width, chunk.count * width);
    const auto other = std::make_shared<at::Tensor>();
    std::vector<std::int64_t> to_other(2, 0);
    to_other[static_cast<std::size_t>(1 - position.rank)] = chunk.count * width;
    stages.push_back({.start =
                          [=](Transport& transport) {
                            *other = uninitialized_bytes(chunk.count * width);
                            return transport.exchange(own, to_other, *other, to_other);
                          },
                      .finish =
                          [=] {
                            std::array<const void*, 2> sources{first_byte(own), first_byte(*other)};
                            if (position.rank == 1) std::swap(sources[0], sources[1]);
                            void* const sum = first_byte(own);
                            reduce(sources, {&sum, 1}, chunk.count, call.type, call.op, scale);
                            other->reset();
                          },
                      // Two half chunks in flight are as much as one chunk's shares and their sums.
                      .after = std::max(-1, static_cast<int>(stages.size()) - 2)});
  }
  return stages;
}

// All ranks get every rank's tensor whole; all of them, or only root, add them up.
std::vector<Stage> reduce_whole(const at::Tensor& tensor, const Call& call, double scale,
                                Position position) {
  const std::int64_t bytes = static_cast<std::int64_t>(tensor.nbytes());
  const at::Tensor all = uninitialized_bytes(position.size * bytes);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(position.size), bytes);
  const bool receives = call.root < 0 || call.root == position.rank;
  return {
      {.start =
           [=](Transport& transport) { return transport.all_gather(bytes_of(tensor), all, sizes); },
       .finish =
           [=] {
             if (receives) {
               reduce_runs(all, first_byte(tensor), tensor.numel(), call, scale, position.size);
             }
           }}};
}

// Chunk by chunk: shares go to the ranks that add them up, then sums go to all ranks, or to root.
// While one chunk is added up only the next is on its way, so that memory is bounded.
std::vector<Stage> reduce_in_chunks(const at::Tensor& tensor, const Call& call, double scale,
                                    Position position) {
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  std::vector<Stage> exchanges;
  std::vector<Stage> distributions;
  for (const ElementRange range : chunks_of(tensor, position.chunk_bytes)) {
    const std::int64_t first = range.begin;
    const std::int64_t count = range.count;
    const auto counts = shares(count, position.size);
    const std::int64_t own = counts[static_cast<std::size_t>(position.rank)];
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + position.rank, std::int64_t{0});
    const auto runs = std::make_shared<at::Tensor>();
    const at::Tensor chunk = bytes_of(tensor, first * width, count * width);
    // On ranks other than root, the tensor must not change.
    const at::Tensor sum = call.root < 0 ? bytes_of(tensor, (first + before) * width, own * width)
                                         : uninitialized_bytes(own * width);
    exchanges.push_back(
        {.start =
             [=](Transport& transport) {
               *runs = uninitialized_bytes(position.size * own * width);
               return transport.exchange(
                   chunk, in_bytes(counts, width), *runs,
                   std::vector(static_cast<std::size_t>(position.size), own * width));
             },
         .finish =
             [=] {
               reduce_runs(*runs, first_byte(sum), own, call, scale, position.size);
               runs->reset();
             }});
    distributions.push_back({.start = [=](Transport& transport) {
      if (call.root < 0) return transport.all_gather(sum, chunk, in_bytes(counts, width));
      std::vector<std::int64_t> out(static_cast<std::size_t>(position.size), 0);
      std::vector<std::int64_t> in(out.size(), 0);
      out[static_cast<std::size_t>(call.root)] = own * width;
      if (position.rank == call.root) in = in_bytes(counts, width);
      return transport.exchange(sum, out,
                                position.rank == call.root ? chunk : uninitialized_bytes(0), in);
    }});
  }
  // e0 e1 d0 e2 d1 e3 d2 ...: each exchange waits for the distribution two chunks before, each
  // distribution for its own exchange.
  std::vector<Stage> stages;
  std::vector<int> stage_of_exchange;
  std::vector<int> stage_of_distribution;
  const auto add_exchange = [&](std::size_t number) {
    if (number >= exchanges.size()) return;
    exchanges[number].after = number < 2 ? -1 : stage_of_distribution[number - 2];
    stage_of_exchange.push_back(static_cast<int>(stages.size()));
    stages.push_back(std::move(exchanges[number]));
  };
  add_exchange(0);
  for (std::size_t number = 0; number < distributions.size(); ++number) {
    add_exchange(number + 1);
    distributions[number].after = stage_of_exchange[number];
    stage_of_distribution.push_back(static_cast<int>(stages.size()));
    stages.push_back(std::move(distributions[number]));
  }
  return stages;
}

}  // namespace

SchedulePtr schedule_reduction(const Call& call, const at::Tensor& tensor, Position position) {
  const double scale = scale_over(position.size, call.op, call.scale);
  if (tensor.numel() == 0) return make_schedule(call, {agreement(position)});
  if (position.size == 2 && call.root < 0) {
    return make_schedule(call, reduce_between_two(tensor, call, scale, position));
  }
  const bool small = static_cast<std::int64_t>(tensor.nbytes()) <= kSmallBytes;
  return make_schedule(call, small ? reduce_whole(tensor, call, scale, position)
                                   : reduce_in_chunks(tensor, call, scale, position));
}

SchedulePtr schedule_reduce_scatter(const Call& call, const at::Tensor& output,
                                    at::TensorList inputs, Position position) {
  if (output.numel() == 0) return make_schedule(call, {agreement(position)});
  const auto bytes = static_cast<std::int64_t>(output.nbytes());
  const double scale = scale_over(position.size, call.op, call.scale);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(position.size), bytes);
  const auto runs = std::make_shared<at::Tensor>();
  const std::vector<at::Tensor> parts = inputs.vec();
  return make_schedule(call, {{.start =
                                   [=](Transport& transport) {
                                     *runs = uninitialized_bytes(position.size * bytes);
                                     return transport.exchange(joined(parts), sizes, *runs, sizes);
                                   },
                               .finish =
                                   [=] {
                                     reduce_runs(*runs, first_byte(output), output.numel(), call,
                                                 scale, position.size);
                                   }}});
}

}  // namespace lockstep::remote
