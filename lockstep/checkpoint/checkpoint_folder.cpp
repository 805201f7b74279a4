// SPDX-License-Identifier: BSD-3-Clause
// Rank 0 finds, reads and writes checkpoints; a thread of each rank sends its parts to rank 0.
#include "lockstep/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <future>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "lockstep/checkpoint/checkpoint_broadcast.h"
#include "lockstep/checkpoint/checkpoint_snapshot.h"
#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/staged_checkpoint.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/on_rank_0.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Makes a group for the threads that write, so that their calls do not mix with the calls of
// training.
std::shared_ptr<ProcessGroup> group_of_writers(ProcessGroup& group) {
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return group.split(all);
}

// Returns the message of what the function throws; empty if it throws nothing.
template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Collective: all ranks throw if one of them has an error. `remedy` ends the message.
void agree_on(const std::string& error, const std::string& remedy, ProcessGroup& group) {
  const std::vector<std::string> errors = all_gather_object(std::string_view(error), group);
  if (!error.empty()) throw CheckpointError(ErrorDetails{.cause = error, .remedy = remedy});
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& cause = errors[static_cast<std::size_t>(rank)];
    if (cause.empty()) continue;
    throw CheckpointError(ErrorDetails{
        .cause = fmt::format("rank {}: {}", rank, cause), .remedy = remedy, .peer = rank});
  }
}

void require_module(const CheckpointContents& contents) {
  if (contents.module == nullptr)
    throw UsageError("a checkpoint needs a module, and this one is null; set .module");
}

// load() calls this before the first step of a run.
void list_parameters_once(const CheckpointContents& contents) {
  if (contents.optimizer != nullptr) optim::remove_repeats("CheckpointFolder", *contents.optimizer);
}

void check_options(const CheckpointFolderOptions& options, const ProcessGroup& group) {
  if (options.keep_last >= 1 && options.keep_best >= 0) return;
  throw UsageError(
      group.context("CheckpointFolder"),
      fmt::format("keep_last is {} and keep_best {}", options.keep_last, options.keep_best),
      "keep at least the last one");
}

// JSON has only finite numbers: the library would write null.
void require_finite_scheduler(const CheckpointContents& contents, const ProcessGroup& group) {
  if (contents.scheduler == nullptr) return;
  for (const auto& [name, number] : *contents.scheduler) {
    if (std::isfinite(number)) continue;
    throw UsageError(group.context("CheckpointFolder"),
                     fmt::format("a checkpoint cannot keep {} of the scheduler, which is {}",
                                 in_quotes(name), number),
                     "give it a finite number, or leave it out");
  }
}

void require_utf8(const json& json, const char* what) {
  if (const auto fault = error_of([&] { json.dump(); }); !fault.empty()) {
    throw UsageError(fmt::format("{} must be UTF-8: {}", what, fault));
  }
}

// Collective. Refuses on all ranks, before training, what save() would refuse after hours.
void agree_on_savable(const CheckpointContents& contents, ProcessGroup& group) {
  const std::string fault = error_of([&] { check_savable(contents); });
  const std::vector<std::string> faults = all_gather_object(std::string_view(fault), group);
  const auto first = std::ranges::find_if(faults, [](const auto& text) { return !text.empty(); });
  if (first == faults.end()) return;
  const auto rank = static_cast<int>(first - faults.begin());
  throw UsageError(ErrorDetails{
      .cause = fmt::format("a checkpoint cannot keep what rank {} trains: {}", rank, *first),
      .peer = rank,
      .contexts = {group.context("CheckpointFolder")}});
}

// A checkpoint and its name; without one, the name is empty.
struct FoundCheckpoint {
  std::string name;
  StoredCheckpoint stored;
};

struct StampEndTime {
  ~StampEndTime() { time = monotonic_nanoseconds(); }
  std::int64_t& time;
};

}  // namespace

struct CheckpointFolder::State {
  State(std::filesystem::path path, GroupArgument argument, CheckpointFolderOptions given)
      : folder(std::move(path)), group(argument.shared()), options(std::move(given)) {
    const CallScope scope(CallOrigin::open_checkpoints);
    check_options(options, *group);
    if (group->rank() != 0 || !options.log) options.log = [](const std::string&) {};
    not_loaded = text_of_rank_0(*group, [&] {
      store = std::make_unique<CheckpointStore>(folder, options.keep_last, options.keep_best,
                                                options.counts_score);
      const auto names = checkpoint_names(folder);
      return names.empty() ? std::string() : names.front();
    });
    writers = group_of_writers(*group);
  }

  // Waits until this rank has done its part of the last checkpoint. Returns why that failed; empty
  // if it did not.
  std::string finish_writing() {
    if (!writing.valid()) return "";
    writing.wait();
    record_writing();
    return error_of([&] {
      const std::string warnings = writing.get();
      if (warnings.empty()) return;
      options.log(
          fmt::format("a checkpoint is complete, but something after it failed: {}", warnings));
    });
  }

  // Collective: when it returns, no rank is writing. Returns the error of this rank. However long
  // the disk takes, no rank waits for another longer than the group's timeout.
  std::string finish_writing_on_all_ranks() {
    const auto poll_interval = group->timeout() / 4;
    for (bool done = false; !done;) {
      const bool own =
          !writing.valid() || writing.wait_for(poll_interval) == std::future_status::ready;
      done = broadcast_object(own, 0, *group);
    }
    const std::string error = finish_writing();
    const auto broken = all_gather_object(std::exchange(writers_are_broken, false), *group);
    // A group that has failed stays unusable.
    if (std::ranges::find(broken, true) != broken.end()) writers = group_of_writers(*group);
    return error;
  }

  // Adds a span to the trace if the same trace has been recording since the writing began.
  void record_writing() const {
    SpanRecorder* const recorder = SpanRecorder::active();
    if (recorder == nullptr || recorder != recorder_of_writing) return;
    recorder->record("checkpoint write", -1, writing_began, writing_ended, RecordedSpan::kWriting);
  }

  // Runs in the writing thread.
  void collect() {
    const CallScope scope(CallOrigin::save_checkpoint);
    try {
      staged.collect(*writers);
    } catch (...) {
      writers_are_broken = true;
      throw;
    }
  }

  void report(const std::string& error) const {
    if (error.empty()) return;
    options.log(fmt::format("a checkpoint was not written, and older ones stay: {}", error));
  }

  // Returns the first undamaged checkpoint of these; `log` says what is wrong with those before it.
  FoundCheckpoint read_first(const std::vector<std::string>& names) const {
    if (names.empty()) return {};
    std::string reason;
    for (const std::string& name : names) {
      try {
        return {name, read_checkpoint(folder / name)};
      } catch (const CheckpointError& error) {
        options.log(fmt::format("{} is not used: {}", name, error.what()));
        if (reason.empty()) reason = error.what();
      }
    }
    throw CheckpointError(ErrorDetails{
        .cause = fmt::format("all {} checkpoints are damaged; the first: {}", names.size(), reason),
        .remedy = "restore the folder from a backup, or choose another one"});
  }

  // Collective. Returns what the function returns on rank 0, without its tensors' elements on other
  // ranks; nullopt if it returns none.
  template <class Read>
  std::optional<FoundCheckpoint> find(const Read& read) const {
    FoundCheckpoint found;
    const json reply = json::parse(text_of_rank_0(*group, [&] {
      found = read();
      return json{{"name", found.name}, {"contents", outline_of(found.stored)}}.dump(
          -1, ' ', false, json::error_handler_t::replace);
    }));
    found.name = reply.at("name").get<std::string>();
    if (found.name.empty()) return std::nullopt;
    agree(found, error_of([&] {
            if (group->rank() != 0) found.stored = with_empty_tensors(reply.at("contents"));
          }));
    return found;
  }

  // Collective. CheckpointError on every rank if one of them has an error.
  void agree(const FoundCheckpoint& found, const std::string& error,
             const std::string& remedy = {}) const {
    agree_on(error.empty() ? "" : fmt::format("{} cannot be loaded: {}", path_of(found), error),
             remedy, *group);
  }

  // Collective. Gives every rank the tensors, and calls a function that restores with them. If it
  // throws on a rank, all ranks throw, and nothing has changed.
  template <class Restore>
  PreparedRestore restore(const FoundCheckpoint& found, const Restore& prepare) const {
    broadcast_tensors(found.stored, /*root=*/0, *group);
    PreparedRestore restored;
    const std::string error = error_of([&] { restored = prepare(); });
    try {
      agree(
          found, error,
          "make the model, optimizer and tensors that it was saved from, or choose another folder");
    } catch (...) {
      if (error.empty()) restored.undo();
      throw;
    }
    return restored;
  }

  std::string path_of(const FoundCheckpoint& found) const { return (folder / found.name).string(); }

  std::filesystem::path folder;
  std::shared_ptr<ProcessGroup> group;
  CheckpointFolderOptions options;
  std::unique_ptr<CheckpointStore> store;  // null except on rank 0
  // The newest checkpoint of an earlier run, until one has been loaded; otherwise empty.
  std::string not_loaded;
  std::shared_ptr<ProcessGroup> writers;
  StagedCheckpoint staged;
  std::future<std::string> writing;
  SpanRecorder* recorder_of_writing = nullptr;
  std::int64_t writing_began = 0;
  // The writing thread sets these two.
  std::int64_t writing_ended = 0;
  bool writers_are_broken = false;
};

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, GroupArgument group,
                                   CheckpointFolderOptions options)
    : state_(std::make_unique<State>(std::move(folder), std::move(group), std::move(options))) {}

CheckpointFolder::~CheckpointFolder() {
  const std::string error = state_->finish_writing();
  error_of([&] { state_->report(error); });  // the function `log` may throw
}

bool CheckpointFolder::can_save() const {
  return state_->not_loaded.empty();
}

void CheckpointFolder::continue_run() {
  state_->not_loaded.clear();
}

std::optional<CheckpointPosition> CheckpointFolder::load(
    const CheckpointContents& contents,
    const std::function<void(const CheckpointPosition&)>& accept) {
  const CallScope scope(CallOrigin::load_checkpoint);
  State& state = *state_;
  state.report(state.finish_writing_on_all_ranks());
  require_module(contents);
  list_parameters_once(contents);
  agree_on_savable(contents, *state.group);
  const auto found = state.find([&] { return state.read_first(checkpoint_names(state.folder)); });
  if (!found) return std::nullopt;
  CheckpointPosition position;
  state.agree(*found, error_of([&] {
    position = position_in(found->stored);
    if (accept) accept(position);
  }));
  state.restore(*found, [&] { return prepare_restore(found->stored, contents, *state.group); })
      .complete();
  if (state.store) state.store->continue_from(found->name);
  state.not_loaded.clear();
  state.options.log(
      fmt::format("resuming from {}, saved at step {}", state.path_of(*found), position.step));
  return position;
}

std::optional<CheckpointPosition> CheckpointFolder::load_best(
    std::shared_ptr<torch::nn::Module> module, std::vector<NamedTensor> tensors) {
  const CallScope scope(CallOrigin::load_checkpoint);
  State& state = *state_;
  state.report(state.finish_writing_on_all_ranks());
  const CheckpointContents contents{.module = std::move(module), .tensors = std::move(tensors)};
  require_module(contents);
  const auto found = state.find([&] {
    FoundCheckpoint best = state.read_first(state.store->names_by_score());
    keep_weights(best.stored);
    return best;
  });
  if (!found) return std::nullopt;
  CheckpointPosition position;
  state.agree(*found, error_of([&] { position = position_in(found->stored); }));
  state.restore(*found, [&] { return restore_weights(found->stored, contents); });
  state.options.log(fmt::format("the weights are those of {}, the best", state.path_of(*found)));
  return position;
}

void CheckpointFolder::save(const CheckpointContents& contents,
                            const CheckpointPosition& position) {
  const CallScope scope(CallOrigin::save_checkpoint);
  State& state = *state_;
  require_module(contents);
  list_parameters_once(contents);
  if (!can_save()) {
    throw UsageError(state.group->context("CheckpointFolder"),
                     fmt::format("{} has checkpoints of an earlier run, the newest of which is {}",
                                 state.folder.string(), state.not_loaded),
                     "load it first to resume, or choose another folder");
  }
  if (position.step < 0) {
    throw UsageError(state.group->context("CheckpointFolder"),
                     fmt::format("a checkpoint cannot be of step {}", position.step),
                     "count from 0");
  }
  require_utf8(position.notes, "the notes of a checkpoint");
  require_finite_scheduler(contents, *state.group);
  if (contents.scheduler != nullptr)
    require_utf8(*contents.scheduler, "the names of a scheduler's numbers");
  state.report(state.finish_writing_on_all_ranks());
  CheckpointSnapshot taken = snapshot(contents, position, *state.group);
  state.staged.copy(taken.files, state.group->rank());
  state.recorder_of_writing = SpanRecorder::active();
  state.writing_began = monotonic_nanoseconds();
  state.writing = std::async(
      std::launch::async,
      [&state, step = position.step, score = position.score, manifest = std::move(taken.manifest)] {
        const UntracedThread untraced;
        const StampEndTime ending{state.writing_ended};
        state.collect();
        if (!state.store) return std::string();
        return state.store->write(step, score, manifest, state.staged.files());
      });
}

void CheckpointFolder::wait() {
  const CallScope scope(CallOrigin::wait_for_checkpoint);
  State& state = *state_;
  const std::string error = state.finish_writing_on_all_ranks();
  on_rank_0(*state.group, [&] {
    if (!error.empty()) throw BackendError(error);
  });
}

}  // namespace lockstep
