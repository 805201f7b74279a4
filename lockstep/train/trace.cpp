// SPDX-License-Identifier: BSD-3-Clause
// Ranks write their own events as text; rank 0 joins the texts.
#include "lockstep/train/trace.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "lockstep/comm/clock_offset.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/on_rank_0.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/train/trace_events.h"

namespace lockstep {
namespace {

std::size_t capacity_of(const TraceOptions& options, const ProcessGroup& group) {
  constexpr std::int64_t kMost = 100'000'000;
  if (options.spans >= 0 && options.spans <= kMost) return static_cast<std::size_t>(options.spans);
  throw UsageError(group.context("Trace"), fmt::format("{} spans cannot be kept", options.spans),
                   fmt::format("give 0 to {}", kMost));
}

void send_text(const std::string& text, int to, ProcessGroup& group) {
  const auto size = static_cast<std::int64_t>(text.size());
  group.send(at::full({1}, size, at::kLong), to).wait();
  const at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  group.send(bytes, to).wait();
}

std::string receive_text(int from, ProcessGroup& group) {
  const at::Tensor size = at::full({1}, 0, at::kLong);
  group.recv(size, from).wait();
  const at::Tensor bytes = at::empty({size.item<std::int64_t>()}, at::kByte);
  group.recv(bytes, from).wait();
  return std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes());
}

void append_text(WholeFile& file, std::string_view text) {
  file.write(text.data(), text.size());
}

}  // namespace

struct Trace::Span::State {
  State(const char* name, std::int64_t number) : span(name, number) {}
  TracedSpan span;
};

Trace::Span::Span(const char* name, std::int64_t number) {
  if (SpanRecorder::active() != nullptr) state_ = std::make_unique<State>(name, number);
}

Trace::Span::~Span() = default;

struct Trace::Recording {
  Recording(std::filesystem::path path, GroupArgument argument, const TraceOptions& options)
      : file(std::move(path)), group(argument.shared()), capacity(capacity_of(options, *group)) {
    if (group->size() > 1 && group->backend() == "thread") {
      throw UsageError(group->context("Trace"), "ranks that are threads share one recording",
                       "trace ranks that are processes");
    }
    const CallScope scope(CallOrigin::trace);
    on_rank_0(*group, [&] { check_can_write(file); });
    offset = measure_clock_offset(name_of_this_clock(), *group);
    recorder.emplace(capacity);
    const auto starts = all_gather_object(monotonic_nanoseconds() + offset.nanoseconds, group);
    start = *std::ranges::min_element(starts);
  }

  std::string label() const {
    std::string text = host_name();
    if (offset.error > 0) {
      text += fmt::format(", clock known to {:.0f} us", static_cast<double>(offset.error) / 1e3);
    }
    if (const auto [in_flight, waited] = recorder->reductions(); in_flight > 0) {
      const double hidden = 1 - static_cast<double>(waited) / static_cast<double>(in_flight);
      text += fmt::format(", {:.0f} % of its buckets' time hidden", hidden * 100);
    }
    if (recorder->dropped() > 0) {
      text += fmt::format(", {} spans after the first {} dropped", recorder->dropped(), capacity);
    }
    return text;
  }

  std::string own_events() const {
    return trace_events({.rank = group->rank(),
                         .label = label(),
                         .shift = offset.nanoseconds - start,
                         .spans = recorder->spans()});
  }

  // Called on rank 0. Receives the texts of the other ranks even if the file cannot be written.
  void write(bool of_all_ranks) {
    std::exception_ptr error;
    std::optional<WholeFile> whole;
    const auto append = [&](const std::string& text) {
      if (error) return;
      try {
        if (!whole) whole.emplace(file);
        append_text(*whole, text);
      } catch (...) {
        error = std::current_exception();
      }
    };
    append("[\n" + own_events());
    for (int rank = 1; of_all_ranks && rank < group->size(); ++rank) {
      append(",\n" + receive_text(rank, *group));
    }
    append("\n]\n");
    if (error) std::rethrow_exception(error);
    whole->commit();
  }

  std::filesystem::path file;
  std::shared_ptr<ProcessGroup> group;
  std::size_t capacity;
  ClockOffset offset;
  std::int64_t start = 0;  // the first rank to record started then, on the clock of rank 0
  std::optional<SpanRecorder> recorder;
};

Trace::Trace(std::filesystem::path file, GroupArgument group, const TraceOptions& options)
    : recording_(std::make_unique<Recording>(std::move(file), std::move(group), options)) {}

Trace::~Trace() {
  if (!recording_ || recording_->group->rank() != 0) return;
  try {
    recording_->write(/*of_all_ranks=*/false);
  } catch (...) {
    // The error that ended training matters more.
  }
}

void Trace::finish() {
  if (!recording_) {
    throw UsageError({.component = "Trace"}, "finish() was called before", "call it once");
  }
  const CallScope scope(CallOrigin::trace);
  const std::unique_ptr<Recording> recording = std::move(recording_);
  if (recording->group->rank() == 0) {
    recording->write(/*of_all_ranks=*/true);
  } else {
    send_text(recording->own_events(), 0, *recording->group);
  }
}

}  // namespace lockstep
