// SPDX-License-Identifier: BSD-3-Clause
// Runs the stages of a schedule; the schedules of collectives that only move elements.
#include "lockstep/comm/remote/schedules.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/remote/payload.h"
#include "lockstep/core/error.h"

namespace lockstep::remote {

Schedule::Schedule(const Call& call, std::vector<Stage> stages) : Task(call) {
  for (auto& stage : stages) stages_.push_back({std::move(stage), nullptr});
}

void Schedule::begin_with(Stage stage) {
  for (auto& [other, transmission, finished] : stages_) other.after += 1;
  stages_.insert(stages_.begin(), {std::move(stage), nullptr});
}

bool Schedule::finish_arrived() {
  bool moved = false;
  for (std::size_t i = 0; i < started_ && (i == 0 || stages_.front().finished); ++i) {
    auto& [stage, transmission, finished] = stages_[i];
    if (finished || !transmission->done()) continue;
    if (stage.finish) stage.finish();
    transmission.reset();
    stage = {};
    finished = moved = true;
    ++finished_;
  }
  if (moved && finished_ == stages_.size()) mark_done();
  return moved;
}

bool Schedule::start_next(Transport& transport) {
  bool moved = false;
  while (!all_started() && !refused_) {
    auto& next = stages_[started_];
    if (next.stage.after >= 0 && !stages_[static_cast<std::size_t>(next.stage.after)].finished)
      break;
    transport.begin_after(mark_);
    transport.begin_stage(call(), started_, sizes_);
    refused_ = true;
    next.transmission = next.stage.start(transport);
    refused_ = false;
    ++started_;
    moved = true;
  }
  return moved;
}

bool Schedule::order_current_stream() {
  if (!all_started()) return false;
  return std::ranges::all_of(stages_, [](Progress& progress) {
    return progress.finished ||
           (!progress.stage.finish && progress.transmission->order_current_stream());
  });
}

std::vector<std::unique_ptr<Transmission>> Schedule::take_transmissions() {
  std::vector<std::unique_ptr<Transmission>> taken;
  for (auto& progress : stages_) {
    if (progress.transmission) taken.push_back(std::move(progress.transmission));
  }
  return taken;
}

const Call* CallLine::find(std::uint64_t number) const {
  const auto found =
      std::ranges::find(calls_, number, [](const auto& call) { return call->call().number; });
  return found == calls_.end() ? nullptr : &(*found)->call();
}

void CallLine::push(std::shared_ptr<Schedule> call) {
  call->number(++last_number_);
  if (call->empty()) return call->mark_done();
  calls_.push_back(std::move(call));
}

bool CallLine::advance(Transport& transport) {
  bool moved = false;
  for (const auto& call : calls_) moved |= call->finish_arrived();
  for (const auto& call : calls_) {
    moved |= call->start_next(transport);
    if (!call->all_started()) break;
  }
  std::erase_if(calls_, [](const auto& call) { return call->done(); });
  return moved;
}

std::vector<std::unique_ptr<Transmission>> CallLine::clear() {
  std::vector<std::unique_ptr<Transmission>> all;
  for (const auto& call : calls_) {
    auto taken = call->take_transmissions();
    std::ranges::move(taken, std::back_inserter(all));
  }
  calls_.clear();
  return all;
}

namespace {

std::vector<std::int64_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(static_cast<std::int64_t>(tensor.nbytes()));
  return sizes;
}

// Sends the outgoing tensors and fills the incoming ones; the sizes are the bytes that go to and
// come from each rank.
Stage exchange_lists(std::vector<at::Tensor> outgoing, std::vector<std::int64_t> outgoing_bytes,
                     std::vector<at::Tensor> incoming, std::vector<std::int64_t> incoming_bytes) {
  const auto arrived = std::make_shared<at::Tensor>();
  return {.start =
              [=](Transport& transport) {
                const auto total =
                    std::accumulate(incoming_bytes.begin(), incoming_bytes.end(), std::int64_t{0});
                *arrived = uninitialized_bytes(total);
                return transport.exchange(joined(outgoing), outgoing_bytes, *arrived,
                                          incoming_bytes);
              },
          .finish = [=] { scatter_bytes(*arrived, incoming); }};
}

// `bytes` for root, 0 for the other ranks.
std::vector<std::int64_t> for_root(int root, std::int64_t bytes, int size) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(size), 0);
  result[static_cast<std::size_t>(root)] = bytes;
  return result;
}

int transport_tag(Tag tag, bool payload) {
  return 2 * static_cast<int>(tag) + (payload ? 1 : 0);
}

at::Tensor description_of(const Call& call) {
  const at::Tensor bytes = uninitialized_bytes(sizeof call).zero_();
  std::memcpy(bytes.data_ptr(), &call, sizeof call);
  return bytes;
}

Call described_by(const std::byte* bytes) {
  Call call;
  std::memcpy(&call, bytes, sizeof call);
  return call;
}

// Root sends its block to each rank. Large tensors of more than two ranks go by the library's
// algorithm instead, after an agreement, since the library does not compare calls.
SchedulePtr schedule_broadcast(const Call& call, const at::Tensor& tensor, Position position) {
  const int root = call.root;
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (bytes <= kSmallBytes || position.size == 2) {
    return make_schedule(call, {{.start = [=](Transport& transport) {
                           return transport.all_gather(
                               position.rank == root ? bytes_of(tensor) : uninitialized_bytes(0),
                               bytes_of(tensor), for_root(root, bytes, position.size));
                         }}});
  }
  return make_schedule(
      call,
      {agreement(position),
       {.start = [=](Transport& transport) { return transport.broadcast(bytes_of(tensor), root); },
        .after = 0}});
}

SchedulePtr schedule_all_gather(const Call& call, const std::vector<at::Tensor>& outputs,
                                const at::Tensor& input, Position position) {
  if (input.numel() == 0) return make_schedule(call, {agreement(position)});
  const auto bytes = static_cast<std::int64_t>(input.nbytes());
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(position.size), bytes);
  if (const at::Tensor in_place = bytes_in_place(outputs); in_place.defined()) {
    return make_schedule(call, {{.start = [=](Transport& transport) {
                           return transport.all_gather(bytes_of(input), in_place, sizes);
                         }}});
  }
  const auto all = std::make_shared<at::Tensor>();
  return make_schedule(call, {{.start =
                                   [=](Transport& transport) {
                                     *all = uninitialized_bytes(position.size * bytes);
                                     return transport.all_gather(bytes_of(input), *all, sizes);
                                   },
                               .finish = [=] { scatter_bytes(*all, outputs); }}});
}

SchedulePtr schedule_gather(const Call& call, const std::vector<at::Tensor>& outputs,
                            const at::Tensor& input, Position position) {
  const int root = call.root;
  if (input.numel() == 0) return make_schedule(call, {agreement(position)});
  auto incoming = sizes_of(outputs);
  incoming.resize(static_cast<std::size_t>(position.size), 0);
  return make_schedule(call, {exchange_lists({input}, for_root(root, input.nbytes(), position.size),
                                             outputs, incoming)});
}

SchedulePtr schedule_scatter(const Call& call, const at::Tensor& output,
                             const std::vector<at::Tensor>& inputs, Position position) {
  const int root = call.root;
  if (output.numel() == 0) return make_schedule(call, {agreement(position)});
  auto outgoing = sizes_of(inputs);
  outgoing.resize(static_cast<std::size_t>(position.size), 0);
  return make_schedule(call, {exchange_lists(inputs, outgoing, {output},
                                             for_root(root, output.nbytes(), position.size))});
}

SchedulePtr schedule_send(const Call& call, const at::Tensor& tensor, Tag tag) {
  const int to = call.root;
  const at::Tensor description = description_of(call);
  std::vector<Stage> stages{{.start = [=](Transport& transport) {
    return transport.send(description, to, transport_tag(tag, false));
  }}};
  if (tensor.numel() > 0) {
    stages.push_back({.start = [=](Transport& transport) {
      return transport.send(bytes_of(tensor), to, transport_tag(tag, true));
    }});
  }
  return make_schedule(call, std::move(stages));
}

SchedulePtr schedule_receive(const Call& call, const at::Tensor& tensor, Tag tag) {
  const int from = call.root;
  const at::Tensor description = description_of(call);
  std::vector<Stage> stages{{.start =
                                 [=](Transport& transport) {
                                   return transport.receive(description, from,
                                                            transport_tag(tag, false));
                                 },
                             .finish =
                                 [=] {
                                   const Call sent = described_by(first_byte(description));
                                   if (sent.elements == call.elements && sent.type == call.type)
                                     return;
                                   throw UsageError(describe_message_difference(
                                       call, fmt::format("rank {}", from), sent));
                                 }}};
  if (tensor.numel() > 0) {
    stages.push_back({.start =
                          [=](Transport& transport) {
                            return transport.receive(bytes_of(tensor), from,
                                                     transport_tag(tag, true));
                          },
                      .after = 0});
  }
  return make_schedule(call, std::move(stages));
}

}  // namespace

Stage agreement(Position position) {
  const std::vector<std::int64_t> nothing(static_cast<std::size_t>(position.size), 0);
  return {.start = [=](Transport& transport) {
    return transport.all_gather(uninitialized_bytes(0), uninitialized_bytes(0), nothing);
  }};
}

SchedulePtr make_schedule(const Call& call, std::vector<Stage> stages) {
  return std::make_shared<Schedule>(call, std::move(stages));
}

SchedulePtr schedule_vote(const Call& call, bool vote, const at::Tensor& votes, Position position) {
  const at::Tensor own = uninitialized_bytes(1).fill_(vote ? 1 : 0);
  return make_schedule(call, {{.start = [=](Transport& transport) {
                         return transport.all_gather(
                             own, votes,
                             std::vector<std::int64_t>(static_cast<std::size_t>(position.size), 1));
                       }}});
}

Stage comparison(const Call& call, Position position) {
  const at::Tensor own = description_of(call);
  const at::Tensor all =
      uninitialized_bytes(position.size * static_cast<std::int64_t>(sizeof call));
  return {
      .start =
          [=](Transport& transport) {
            return transport.all_gather(
                own, all,
                std::vector<std::int64_t>(static_cast<std::size_t>(position.size), sizeof call));
          },
      .finish =
          [=] {
            const Call mine = described_by(first_byte(own));
            for (int rank = 0; rank < position.size; ++rank) {
              const Call other = described_by(first_byte(all) + rank * sizeof call);
              if (other == mine) continue;
              throw CallsDiffer({}, mine, rank, fmt::format("rank {}", rank), other);
            }
          }};
}

Stage exchange_comparison(const std::vector<std::int64_t>& sizes, Position position) {
  const at::Tensor own = at::tensor(sizes, at::kLong);
  const auto count = static_cast<std::int64_t>(sizes.size());
  const at::Tensor all = at::empty({position.size, count}, at::kLong);
  return {.start =
              [=](Transport& transport) {
                return transport.all_gather(bytes_of(own), bytes_of(all),
                                            std::vector(static_cast<std::size_t>(position.size),
                                                        static_cast<std::int64_t>(own.nbytes())));
              },
          .finish =
              [=] {
                std::vector<const std::int64_t*> of_ranks;
                for (int rank = 0; rank < position.size; ++rank) {
                  of_ranks.push_back(all.data_ptr<std::int64_t>() + rank * count);
                }
                const std::string fault = exchange_fault(of_ranks);
                if (!fault.empty()) throw UsageError(fault);
              }};
}

SchedulePtr schedule_message(const Call& call, const at::Tensor& tensor, Tag tag) {
  return call.collective == Collective::send ? schedule_send(call, tensor, tag)
                                             : schedule_receive(call, tensor, tag);
}

std::vector<SchedulePtr> schedule_bytes(const CollectiveArgs& args, Position position) {
  const auto for_each_output = [&](const auto& schedule) {
    std::vector<SchedulePtr> schedules;
    for (std::size_t i = 0; i < args.outputs.size(); ++i) {
      schedules.push_back(schedule(args.call_of_output(i), args.outputs[i], position));
    }
    return schedules;
  };
  switch (args.call.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      return for_each_output(schedule_reduction);
    case Collective::broadcast:
      return for_each_output(schedule_broadcast);
    case Collective::all_gather:
      return {schedule_all_gather(args.call, args.outputs.vec(), args.inputs[0], position)};
    case Collective::gather:
      return {schedule_gather(args.call, args.outputs.vec(), args.inputs[0], position)};
    case Collective::scatter:
      return {schedule_scatter(args.call, args.outputs[0], args.inputs.vec(), position)};
    case Collective::reduce_scatter:
      return {schedule_reduce_scatter(args.call, args.outputs[0], args.inputs, position)};
    case Collective::all_to_all: {
      const auto inputs = args.inputs.vec();
      const auto outputs = args.outputs.vec();
      return {make_schedule(
          args.call, {exchange_lists(inputs, sizes_of(inputs), outputs, sizes_of(outputs))})};
    }
    case Collective::send:
    case Collective::recv:
    case Collective::barrier:
    case Collective::empty:
    case Collective::split:
      break;  // messages, and calls without tensors, are scheduled alike for all transports
  }
  return {};
}

}  // namespace lockstep::remote
