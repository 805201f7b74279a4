// SPDX-License-Identifier: BSD-3-Clause
// Spans: what the threads of this process do, and from when to when. Where nothing is recorded, a
// span costs one atomic load.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
std::int64_t monotonic_nanoseconds() noexcept;

struct RecordedSpan {
  // The `thread` of a reduction between its launch and its arrival, while the thread that launched
  // it does something else.
  static constexpr std::int32_t kInFlight = -1;
  // The `thread` of the writing of a checkpoint, which runs in a thread of its own. The thread that
  // waits for it records the span.
  static constexpr std::int32_t kWriting = -2;

  const char* name;
  std::int64_t begin;
  std::int64_t end;
  // A count or number of the span's subject, such as a bucket's number; negative if it has none.
  std::int32_t number;
  // 0 is the thread that made the recorder.
  std::int32_t thread;
};

// A reduction under way.
struct Launch {
  std::int64_t at = 0;
  std::int64_t waited_before = 0;
};

// Nanoseconds from the launches of reductions to their arrivals, summed over the reductions, and
// the part of them in which threads waited for any collective ("wait"). Computation hides the rest.
struct ReductionTimes {
  std::int64_t in_flight = 0;
  std::int64_t waited = 0;
};

// Records the spans of this process while it lives. At most one may live at a time, and no thread
// may be within a span of another thread's work when it is destroyed. Recording neither locks nor
// allocates, and takes 100 to 200 ns a span, mostly to read the clock twice.
class SpanRecorder {
 public:
  // Keeps the first `capacity` spans, and counts those that follow.
  explicit SpanRecorder(std::size_t capacity);
  ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  // Null if nothing is recorded.
  static SpanRecorder* active() noexcept { return active_.load(std::memory_order_acquire); }

  // A name must live as long as the recorder.
  void record(const char* name, std::int32_t number, std::int64_t begin, std::int64_t end,
              std::int32_t thread) noexcept;
  void add_to_total(const char* name, std::int64_t nanoseconds) noexcept;
  // These two record a reduction from its launch to its arrival. One thread calls both.
  Launch launch() const noexcept { return {monotonic_nanoseconds(), total("wait")}; }
  void arrive(const char* name, std::int32_t number, const Launch& launch) noexcept;

  // The functions below expect that no thread records meanwhile.

  // The kept spans, in the order of their ends.
  std::vector<RecordedSpan> spans() const;
  std::int64_t dropped() const noexcept;
  // For each name, the nanoseconds in its spans on threads but not in spans inside them. Not
  // limited by the capacity. Names after the first 32 are left out.
  std::vector<std::pair<std::string, std::int64_t>> totals() const;
  // The times of the reductions that have arrived. Not limited by the capacity either.
  ReductionTimes reductions() const noexcept { return {in_flight_.load(), waited_.load()}; }

 private:
  struct Total {
    std::atomic<const char*> name = nullptr;
    std::atomic<std::int64_t> nanoseconds = 0;
  };

  std::int64_t total(std::string_view name) const noexcept;

  inline static std::atomic<SpanRecorder*> active_ = nullptr;

  std::size_t capacity_;
  std::unique_ptr<RecordedSpan[]> spans_;  // initialized, so that recording finds its pages
  std::atomic<std::size_t> next_ = 0;
  std::array<Total, 32> totals_;
  std::atomic<std::int64_t> in_flight_ = 0;
  std::atomic<std::int64_t> waited_ = 0;
  std::int32_t maker_;
};

// While it lives, TracedSpans of this thread record nothing: for a thread whose work may last
// longer than the recorder, and is not part of training's time.
class [[nodiscard]] UntracedThread {
 public:
  UntracedThread() noexcept;
  ~UntracedThread();
  UntracedThread(const UntracedThread&) = delete;
  UntracedThread& operator=(const UntracedThread&) = delete;

 private:
  bool before_;
};

// A span from construction to destruction, on this thread.
class [[nodiscard]] TracedSpan {
 public:
  explicit TracedSpan(const char* name, std::int64_t number = -1) noexcept
      : recorder_(SpanRecorder::active()) {
    if (recorder_ != nullptr) begin(name, number);
  }
  ~TracedSpan() {
    if (recorder_ != nullptr) end();
  }
  TracedSpan(const TracedSpan&) = delete;
  TracedSpan& operator=(const TracedSpan&) = delete;

 private:
  void begin(const char* name, std::int64_t number) noexcept;
  void end() noexcept;

  SpanRecorder* recorder_;
  const char* name_ = nullptr;
  std::int32_t number_ = -1;
  std::int64_t begin_ = 0;
  std::int64_t inner_before_ = 0;
};

}  // namespace lockstep
