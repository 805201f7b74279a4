// SPDX-License-Identifier: BSD-3-Clause
// Public. Records what every rank does, and when, for Perfetto (ui.perfetto.dev) and
// chrome://tracing:
//
//   lockstep::Trace trace("trace.json", group);
//   ... train ...
//   trace.finish();
//
// docs/trace.md says what a trace shows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/comm/group_argument.h"

namespace lockstep {

struct TraceOptions {
  // The number of spans that each rank keeps, each 32 bytes in memory and about 90 in the file.
  // Later spans are counted and dropped. The default lasts for about 30,000 steps.
  std::int64_t spans = 262'144;
};

// Records from construction to finish(): each batch that a MemoryLoader makes, or that the loop
// over a DataLoader waits for ("data"); forward, backward, optimizer and evaluation of a Trainer;
// the launch of each bucket of gradients, and its time until arrival; every wait for a collective;
// each save of a Trainer and the writing of each checkpoint; and the program's own Spans. One Trace
// at a time in a process. Backward, and spans of any thread, must have ended before finish() and
// destruction.
class Trace {
 public:
  // Marks the time from construction to destruction, on this thread. Costs an atomic load if there
  // is no Trace. Does not throw.
  class [[nodiscard]] Span {
   public:
    // `name`, usually a literal, must outlive the Trace. `number`, such as an epoch's, is shown
    // with it unless it is negative.
    explicit Span(const char* name, std::int64_t number = -1);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    struct State;
    std::unique_ptr<State> state_;  // null unless something is recorded
  };

  // Collective. Measures the offset of each machine's clock to the clock of rank 0. UsageError on
  // every rank if rank 0 cannot write the file, for ranks that are threads, and if this process has
  // another Trace; BackendError as from WholeFile.
  Trace(std::filesystem::path file, GroupArgument group, const TraceOptions& options = {});
  // Without finish(), as after an exception, rank 0 writes its own spans. Never throws, and does
  // not wait for other ranks.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Collective; call it once. Ends the recording. Rank 0 writes the spans of all ranks as a JSON
  // array, and replaces an older file only when the new one is on the disk; UsageError or
  // BackendError on rank 0 if that fails.
  void finish();

 private:
  struct Recording;

  std::unique_ptr<Recording> recording_;  // null after finish()
};

}  // namespace lockstep
