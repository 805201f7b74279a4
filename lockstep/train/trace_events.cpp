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

// Numbers of threads, in the order in which a viewer shows them. They differ from the numbers
// of processes: Perfetto would take such a thread for the process's main thread.
constexpr int kTraining = 1;
constexpr int kFirstTrack = 2;   // reductions in flight
constexpr int kWriter = 10'000;  // writes checkpoints
constexpr int kFirstOtherThread = 10'001;

// A name may be any bytes.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string event_metadata(int process, int thread, std::string_view what, std::string_view key,
                           const std::string& value) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"{}":{}}}}})", what,
                     process, thread, key, value);
}

// Microseconds with all digits of a nanosecond.
std::string event_microseconds(std::int64_t nanoseconds) {
  const std::int64_t magnitude = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

// Assigns spans in flight to threads: each gets the first thread that is free when it begins.
class Tracks {
 public:
  int take(const RecordedSpan& span) {
    auto track = std::ranges::find_if(ends_, [&](std::int64_t end) { return end <= span.begin; });
    if (track == ends_.end()) track = ends_.insert(ends_.end(), 0);
    *track = span.end;
    return kFirstTrack + static_cast<int>(track - ends_.begin());
  }

 private:
  std::vector<std::int64_t> ends_;
};

std::string thread_name(int thread) {
  if (thread == kTraining) return "training";
  if (thread < kWriter) return "communication";
  if (thread == kWriter) return "checkpoints";
  return fmt::format("thread {}", thread - kFirstOtherThread);
}

}  // namespace

std::string trace_events(TracedRank traced) {
  const int process = kFirstTracedProcess + traced.rank;
  // A span that holds others comes before them.
  std::ranges::stable_sort(traced.spans, [](const RecordedSpan& a, const RecordedSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::map<const char*, std::string> names;
  std::set<int> threads{kTraining};
  Tracks tracks;
  std::string spans;
  for (const RecordedSpan& span : traced.spans) {
    const int thread = span.thread == RecordedSpan::kInFlight  ? tracks.take(span)
                       : span.thread == RecordedSpan::kWriting ? kWriter
                       : span.thread == 0                      ? kTraining
                                                               : kFirstOtherThread + span.thread;
    threads.insert(thread);
    std::string& name = names[span.name];
    if (name.empty()) name = json_text(span.name);
    fmt::format_to(std::back_inserter(spans),
                   ",\n"
                   R"({{"name":{},"ph":"X","ts":{},"dur":{},"pid":{},"tid":{})",
                   name, event_microseconds(span.begin + traced.shift),
                   event_microseconds(span.end - span.begin), process, thread);
    if (span.number >= 0) {
      fmt::format_to(std::back_inserter(spans), R"(,"args":{{"number":{}}})", span.number);
    }
    spans += '}';
  }
  std::string events = event_metadata(process, kTraining, "process_name", "name",
                                      json_text(fmt::format("rank {}", traced.rank)));
  const auto add = [&](int thread, std::string_view what, std::string_view key, std::string value) {
    events += ",\n" + event_metadata(process, thread, what, key, value);
  };
  add(kTraining, "process_sort_index", "sort_index", std::to_string(traced.rank));
  add(kTraining, "process_labels", "labels", json_text(traced.label));
  for (const int thread : threads) {
    add(thread, "thread_name", "name", json_text(thread_name(thread)));
    add(thread, "thread_sort_index", "sort_index", std::to_string(thread));
  }
  return events + spans;
}

}  // namespace lockstep
