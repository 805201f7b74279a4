// SPDX-License-Identifier: BSD-3-Clause
// Writes each span as a complete event ("X"), and names processes and threads.
#include "lockstep/train/trace_events.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

constexpr int kFirstLane = 1;  // of reductions in flight
constexpr int kWriter = 99;    // of checkpoints
constexpr int kFirstOtherThread = 100;

// A name may be any bytes.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string event_metadata(int rank, int thread, std::string_view what, std::string_view key,
                           const std::string& value) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"{}":{}}}}})", what, rank,
                     thread, key, value);
}

// Microseconds with all digits of a nanosecond.
std::string event_microseconds(std::int64_t nanoseconds) {
  const std::int64_t magnitude = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

// Threads of spans in flight: the first on which none is under way.
class Lanes {
 public:
  int take(const RecordedSpan& span) {
    auto lane = std::ranges::find_if(ends_, [&](std::int64_t end) { return end <= span.begin; });
    if (lane == ends_.end()) lane = ends_.insert(ends_.end(), 0);
    *lane = span.end;
    return kFirstLane + static_cast<int>(lane - ends_.begin());
  }
  int count() const { return static_cast<int>(ends_.size()); }

 private:
  std::vector<std::int64_t> ends_;
};

}  // namespace

std::string trace_events(TracedRank traced) {
  const int rank = traced.rank;
  // A span that holds others comes before them.
  std::ranges::stable_sort(traced.spans, [](const RecordedSpan& a, const RecordedSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::map<const char*, std::string> names;
  std::set<int> other_threads;
  bool writes = false;
  Lanes lanes;
  std::string spans;
  for (const RecordedSpan& span : traced.spans) {
    int thread = span.thread == 0 ? 0 : kFirstOtherThread + span.thread;
    if (span.thread == RecordedSpan::kInFlight) {
      thread = lanes.take(span);
    } else if (span.thread == RecordedSpan::kWriting) {
      thread = kWriter;
      writes = true;
    } else if (thread != 0) {
      other_threads.insert(thread);
    }
    std::string& name = names[span.name];
    if (name.empty()) name = json_text(span.name);
    fmt::format_to(std::back_inserter(spans),
                   ",\n"
                   R"({{"name":{},"ph":"X","ts":{},"dur":{},"pid":{},"tid":{})",
                   name, event_microseconds(span.begin + traced.shift),
                   event_microseconds(span.end - span.begin), rank, thread);
    if (span.number >= 0) {
      fmt::format_to(std::back_inserter(spans), R"(,"args":{{"number":{}}})", span.number);
    }
    spans += '}';
  }
  std::string events =
      event_metadata(rank, 0, "process_name", "name", json_text(fmt::format("rank {}", rank)));
  const auto add = [&](int thread, std::string_view what, std::string_view key, std::string value) {
    events += ",\n" + event_metadata(rank, thread, what, key, value);
  };
  add(0, "process_sort_index", "sort_index", std::to_string(rank));
  add(0, "process_labels", "labels", json_text(traced.label));
  add(0, "thread_name", "name", json_text("training"));
  for (int lane = 0; lane < lanes.count(); ++lane) {
    add(kFirstLane + lane, "thread_name", "name", json_text("communication"));
  }
  if (writes) add(kWriter, "thread_name", "name", json_text("checkpoints"));
  for (const int thread : other_threads) {
    add(thread, "thread_name", "name",
        json_text(fmt::format("thread {}", thread - kFirstOtherThread)));
  }
  return events + spans;
}

}  // namespace lockstep
