// SPDX-License-Identifier: BSD-3-Clause
// Keeps spans in an array whose elements threads claim by a counter.
#include "lockstep/core/trace_span.h"

#include <algorithm>

#include <time.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::int32_t number_of_this_thread() noexcept {
  static std::atomic<std::int32_t> next = 0;
  thread_local const std::int32_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

// The nanoseconds of the spans that have ended within this thread's innermost open span.
thread_local std::int64_t nanoseconds_inside = 0;

thread_local bool is_untraced = false;

}  // namespace

std::int64_t monotonic_nanoseconds() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

SpanRecorder::SpanRecorder(std::size_t capacity)
    : capacity_(capacity),
      spans_(std::make_unique<RecordedSpan[]>(capacity)),
      maker_(number_of_this_thread()) {
  SpanRecorder* none = nullptr;
  if (active_.compare_exchange_strong(none, this, std::memory_order_acq_rel)) return;
  throw UsageError(
      "this process is being traced already. Destroy the first Trace before you make another one");
}

SpanRecorder::~SpanRecorder() {
  active_.store(nullptr, std::memory_order_release);
}

void SpanRecorder::record(const char* name, std::int32_t number, std::int64_t begin,
                          std::int64_t end, std::int32_t thread) noexcept {
  const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index < capacity_) spans_[index] = {name, begin, end, number, thread};
}

// There are few names, each usually at one address.
void SpanRecorder::add_to_total(const char* name, std::int64_t nanoseconds) noexcept {
  for (Total& total : totals_) {
    const char* known = total.name.load(std::memory_order_relaxed);
    if (known == nullptr &&
        total.name.compare_exchange_strong(known, name, std::memory_order_relaxed)) {
      known = name;
    }
    if (known != name) continue;
    total.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
    return;
  }
}

void SpanRecorder::arrive(const char* name, std::int32_t number, const Launch& launch) noexcept {
  const std::int64_t now = monotonic_nanoseconds();
  record(name, number, launch.at, now, RecordedSpan::kInFlight);
  in_flight_.fetch_add(now - launch.at, std::memory_order_relaxed);
  waited_.fetch_add(total("wait") - launch.waited_before, std::memory_order_relaxed);
}

std::int64_t SpanRecorder::total(std::string_view name) const noexcept {
  std::int64_t sum = 0;
  for (const Total& total : totals_) {
    const char* const known = total.name.load(std::memory_order_relaxed);
    if (known == nullptr) break;
    if (name == known) sum += total.nanoseconds.load(std::memory_order_relaxed);
  }
  return sum;
}

std::vector<RecordedSpan> SpanRecorder::spans() const {
  const std::size_t kept = std::min(next_.load(), capacity_);
  std::vector<RecordedSpan> spans(spans_.get(), spans_.get() + kept);
  for (RecordedSpan& span : spans) {
    if (span.thread < 0) continue;
    // The maker's number changes places with 0.
    if (span.thread == maker_) {
      span.thread = 0;
    } else if (span.thread == 0) {
      span.thread = maker_;
    }
  }
  return spans;
}

std::int64_t SpanRecorder::dropped() const noexcept {
  const std::size_t all = next_.load();
  return static_cast<std::int64_t>(all - std::min(all, capacity_));
}

std::vector<std::pair<std::string, std::int64_t>> SpanRecorder::totals() const {
  std::vector<std::pair<std::string, std::int64_t>> totals;
  for (const Total& total : totals_) {
    const char* const name = total.name.load();
    if (name == nullptr) break;
    const auto known =
        std::ranges::find(totals, name, &std::pair<std::string, std::int64_t>::first);
    if (known == totals.end()) {
      totals.emplace_back(name, total.nanoseconds.load());
    } else {
      known->second += total.nanoseconds.load();
    }
  }
  return totals;
}

UntracedThread::UntracedThread() noexcept : before_(std::exchange(is_untraced, true)) {}

UntracedThread::~UntracedThread() {
  is_untraced = before_;
}

void TracedSpan::begin(const char* name, std::int64_t number) noexcept {
  if (is_untraced) {
    recorder_ = nullptr;
    return;
  }
  name_ = name;
  number_ = static_cast<std::int32_t>(number);
  inner_before_ = nanoseconds_inside;
  nanoseconds_inside = 0;
  begin_ = monotonic_nanoseconds();
}

void TracedSpan::end() noexcept {
  const std::int64_t end = monotonic_nanoseconds();
  // A span that outlives its recorder is not recorded.
  if (SpanRecorder::active() == recorder_) {
    recorder_->record(name_, number_, begin_, end, number_of_this_thread());
    recorder_->add_to_total(name_, end - begin_ - nanoseconds_inside);
  }
  nanoseconds_inside = inner_before_ + (end - begin_);
}

}  // namespace lockstep
